#include "hopmix/kernels/linear_recurrence.h"

#include <algorithm>
#include <array>

#include "hopmix/kernels/parallel.h"
#include "hopmix/kernels/vec.h"

namespace hopmix::kernels {
namespace {

// Channels handled together: their state stays in cache and the inner loop has whole lines to read.
constexpr int64_t kBlock = 64;

template <typename A>
using State = std::array<A, kBlock>;

// Channels [first, first + width) of one sequence.
struct Block {
  int64_t sequence, first, width;
};

template <typename T, typename Body>
void for_each_block(const LinearRecurrenceInputs<T>& in, const Body& body) {
  const int64_t blocks = (in.width + kBlock - 1) / kBlock;
  const int64_t entries = in.sequences.tokens() * in.width;
  parallel_tasks(in.sequences.count() * blocks, entries, [&](int64_t task) {
    const int64_t first = task % blocks * kBlock;
    body(Block{task / blocks, first, std::min(kBlock, in.width - first)});
  });
}

// Offset of the block's first channel at token t of its sequence.
template <typename T>
int64_t offset(const LinearRecurrenceInputs<T>& in, const Block& b, int64_t t) {
  const int64_t token = in.sequences.first_token(in.sequences.list[b.sequence]) + t;
  return head_offset(token, 1, 0, in.width) + b.first;
}

// Runs the block from its initial state; `visit(t, state)` sees the state before token t, and at
// last the final one.
template <typename T, typename Visit>
void run(const LinearRecurrenceInputs<T>& in, const Block& b, const Visit& visit) {
  using A = Accumulator<T>;
  State<A> state{};
  if (in.initial_state) {
    const A* from = in.initial_state + head_offset(b.sequence, 1, 0, in.width) + b.first;
    std::copy(from, from + b.width, state.begin());
  }
  const int64_t length = in.sequences.list[b.sequence].length;
  for (int64_t t = 0; t < length; ++t) {
    visit(t, state);
    const int64_t at = offset(in, b, t);
#pragma omp simd
    for (int64_t c = 0; c < b.width; ++c) {
      state[c] = static_cast<A>(in.a[at + c]) * state[c] + static_cast<A>(in.x[at + c]);
    }
  }
  visit(length, state);
}

}  // namespace

template <typename T>
void linear_recurrence(const LinearRecurrenceInputs<T>& in, T* y, Accumulator<T>* state) {
  using A = Accumulator<T>;
  for_each_block(in, [&](const Block& b) {
    const int64_t length = in.sequences.list[b.sequence].length;
    run(in, b, [&](int64_t t, const State<A>& now) {
      if (t > 0) {
        const int64_t at = offset(in, b, t - 1);
        for (int64_t c = 0; c < b.width; ++c) y[at + c] = static_cast<T>(now[c]);
      }
      if (t == length) {
        std::copy(now.begin(), now.begin() + b.width,
                  state + head_offset(b.sequence, 1, 0, in.width) + b.first);
      }
    });
  });
}

template <typename T>
void linear_recurrence_backward(const LinearRecurrenceInputs<T>& in, const T* y, const T* grad_y,
                                const Accumulator<T>* grad_state,
                                const LinearRecurrenceGradients<T>& out) {
  using A = Accumulator<T>;
  for_each_block(in, [&](const Block& b) {
    const int64_t length = in.sequences.list[b.sequence].length;
    const int64_t state_at = head_offset(b.sequence, 1, 0, in.width) + b.first;

    // Row t: the state before token t. Where y was rounded it is computed again.
    Head<A> before(length + 1, b.width);
    if (kRoundsOutput<T> && out.a) {
      run(in, b, [&](int64_t t, const State<A>& now) {
        std::copy(now.begin(), now.begin() + b.width, before[t]);
      });
    } else if (out.a) {
      if (in.initial_state) {
        std::copy(in.initial_state + state_at, in.initial_state + state_at + b.width, before[0]);
      }
      for (int64_t t = 1; t <= length; ++t) {
        const T* from = y + offset(in, b, t - 1);
        for (int64_t c = 0; c < b.width; ++c) before[t][c] = static_cast<A>(from[c]);
      }
    }

    State<A> g{};  // dLoss/dy_t, then carried to t - 1 through a_t
    if (grad_state) std::copy(grad_state + state_at, grad_state + state_at + b.width, g.begin());
    for (int64_t t = length - 1; t >= 0; --t) {
      const int64_t at = offset(in, b, t);
#pragma omp simd
      for (int64_t c = 0; c < b.width; ++c) {
        if (grad_y) g[c] += static_cast<A>(grad_y[at + c]);
        if (out.x) out.x[at + c] = static_cast<T>(g[c]);
        if (out.a) out.a[at + c] = static_cast<T>(g[c] * before[t][c]);
        g[c] *= static_cast<A>(in.a[at + c]);
      }
    }
    if (out.initial_state) {
      std::copy(g.begin(), g.begin() + b.width, out.initial_state + state_at);
    }
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
