#include "hopmix/kernels/scan/linear_recurrence.h"

#include <algorithm>

#include "hopmix/kernels/base/index.h"
#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/scan/linear_recurrence_loops.h"

namespace hopmix::kernels {
namespace {

// Whole lines of memory to a block of channels; narrow ones where that keeps every thread busy.
constexpr int64_t kWide = 64, kNarrow = 16;

// Calls body(block) for blocks of channels of every sequence.
template <typename T, typename Body>
void for_each_block(const LinearRecurrenceInputs<T>& in, const Body& body) {
  const auto blocks_of = [&](int64_t width) { return (in.width + width - 1) / width; };
  const int64_t sequences = in.sequences.count();
  const int64_t width = sequences * blocks_of(kWide) < 2 * omp_get_max_threads() ? kNarrow : kWide;
  const int64_t blocks = blocks_of(width), entries = in.sequences.tokens() * in.width;
  parallel_tasks(sequences * blocks, entries, [&](int64_t task) {
    const int64_t n = task / blocks, first = task % blocks * width;
    const Sequence& s = in.sequences.list[n];
    const int64_t at = head_offset(in.sequences.first_token(s), 1, 0, in.width) + first;
    const int64_t state_at = head_offset(n, 1, 0, in.width) + first;
    ChannelBlock<T> block{};
    block.length = s.length;
    block.stride = in.width;
    block.width = std::min(width, in.width - first);
    block.a = in.a + at;
    block.x = in.x + at;
    block.initial = in.initial_state ? in.initial_state + state_at : nullptr;
    body(block, at, state_at);
  });
}

}  // namespace

template <typename T>
void linear_recurrence(const LinearRecurrenceInputs<T>& in, T* y, Accumulator<T>* state) {
  const auto loops = linear_recurrence_loops<T>();
  for_each_block(in, [&](ChannelBlock<T>& block, int64_t at, int64_t state_at) {
    block.y = y + at;
    block.state = state + state_at;
    loops.forward(block);
  });
}

template <typename T>
void linear_recurrence_backward(const LinearRecurrenceInputs<T>& in, const T* y, const T* grad_y,
                                const Accumulator<T>* grad_state,
                                const LinearRecurrenceGradients<T>& out) {
  using A = Accumulator<T>;
  const auto loops = linear_recurrence_loops<T>();
  for_each_block(in, [&](ChannelBlock<T>& block, int64_t at, int64_t state_at) {
    Buffer<A> exact;
    if (out.a && kRoundsOutput<T>) {
      // y was rounded; its own type of sums is needed.
      exact = Buffer<A>(block.length * block.width);
      block.exact = exact.data();
      loops.states(block);
    }
    ChannelGradients<T> grads{};
    grads.y = y + at;
    grads.grad_y = grad_y ? grad_y + at : nullptr;
    grads.grad_state = grad_state ? grad_state + state_at : nullptr;
    grads.a = out.a ? out.a + at : nullptr;
    grads.x = out.x ? out.x + at : nullptr;
    grads.initial = out.initial_state ? out.initial_state + state_at : nullptr;
    loops.backward(block, grads);
  });
}

template void linear_recurrence(const LinearRecurrenceInputs<float>&, float*, float*);
template void linear_recurrence(const LinearRecurrenceInputs<double>&, double*, double*);
template void linear_recurrence(const LinearRecurrenceInputs<Bfloat16>&, Bfloat16*, float*);
template void linear_recurrence_backward(const LinearRecurrenceInputs<float>&, const float*,
                                         const float*, const float*,
                                         const LinearRecurrenceGradients<float>&);
template void linear_recurrence_backward(const LinearRecurrenceInputs<double>&, const double*,
                                         const double*, const double*,
                                         const LinearRecurrenceGradients<double>&);
template void linear_recurrence_backward(const LinearRecurrenceInputs<Bfloat16>&, const Bfloat16*,
                                         const Bfloat16*, const float*,
                                         const LinearRecurrenceGradients<Bfloat16>&);

}  // namespace hopmix::kernels
