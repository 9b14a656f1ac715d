#include "hopmix/kernels/decode/matrix_step.h"

#include <algorithm>
#include <cmath>

#include "hopmix/kernels/base/index.h"
#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/chunked/chunk_loops.h"
#include "hopmix/kernels/decode/matrix_step_loops.h"

namespace hopmix::kernels {
namespace {

/// The steps of one call.
template <typename T>
class Steps {
 public:
  using A = Accumulator<T>;

  Steps(const MatrixStateInputs<T>& in, T* o, A* state) : in_(in), o_(o), state_(state) {}

  /// One head of sequence n.
  void step(int64_t n, int64_t head) const {
    const int64_t token = in_.sequences.first_token(in_.sequences.list[n]);
    const int64_t kv_head = head / (in_.heads / in_.kv_heads);
    const int64_t keys = padded(in_.key_width), values = padded(in_.value_width);
    const Buffer<A> scratch(3 * keys + 2 * values);
    A *const q = scratch.data(), *const k = q + keys, *const decay = k + keys;
    A *const v = decay + keys, *const o = v + values;
    load(in_.q, token, in_.heads, head, in_.key_width, static_cast<A>(in_.scale), q);
    load(in_.k, token, in_.kv_heads, kv_head, in_.key_width, A{1}, k);
    load(in_.v, token, in_.kv_heads, kv_head, in_.value_width, A{1}, v);
    const int64_t gate = head_offset(token, in_.heads, head, 1);
    load_decay(token, head, decay);
    const int64_t at = head_offset(n, in_.heads, head, 1) * in_.key_width * in_.value_width;
    const StepHead<A> all{in_.key_width,
                          in_.value_width,
                          q,
                          k,
                          decay,
                          v,
                          in_.beta ? static_cast<A>(in_.beta[gate]) : A{1},
                          in_.initial_state ? in_.initial_state + at : nullptr,
                          state_ + at,
                          o};
    in_.beta ? loops_.correct(all) : loops_.add(all);
    tiles_.store(o, values, 1, in_.value_width, A{1},
                 o_ + head_offset(token, in_.heads, head, in_.value_width), 0);
  }

 private:
  void load(const T* x, int64_t token, int64_t heads, int64_t head, int64_t width, A factor,
            A* to) const {
    tiles_.load(x + head_offset(token, heads, head, width), 0, 1, width, factor, to, 1,
                padded(width));
  }

  void load_decay(int64_t token, int64_t head, A* to) const {
    if (in_.log_decay != nullptr && in_.channels) {
      load(in_.log_decay, token, in_.heads, head, in_.key_width, A{1}, to);
      loops_.exponentials(padded(in_.key_width), to);
    } else {
      const T* g = in_.log_decay;
      const A decay =
          g ? std::exp(static_cast<A>(g[head_offset(token, in_.heads, head, 1)])) : A{1};
      std::fill_n(to, in_.key_width, decay);
    }
  }

  const MatrixStateInputs<T>& in_;
  T* o_;
  A* state_;
  const MatrixStepLoops<A> loops_ = matrix_step_loops<A>();
  const TileLoops<T> tiles_ = tile_loops<T>();
};

// States that fit the cache of a core stay there from step to step, if nothing moves them.
constexpr int64_t kWorthThreadsHere = int64_t{1} << 20;

}  // namespace

template <typename T>
void matrix_step(const MatrixStateInputs<T>& in, T* o, Accumulator<T>* state) {
  const Steps<T> steps(in, o, state);
  const int64_t tasks = in.sequences.count() * in.heads;
  const int64_t entries = tasks * in.key_width * in.value_width;
  parallel_tasks(tasks, entries < kWorthThreadsHere ? 0 : entries, [&](int64_t task) {
    const int64_t n = task / in.heads;
    if (in.sequences.list[n].length == 1) steps.step(n, task % in.heads);
  });
}

template void matrix_step(const MatrixStateInputs<float>&, float*, float*);
template void matrix_step(const MatrixStateInputs<double>&, double*, double*);
template void matrix_step(const MatrixStateInputs<Bfloat16>&, Bfloat16*, float*);

}  // namespace hopmix::kernels
