#include "hopmix/kernels/decode/attention_step.h"

#include <algorithm>

#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/decode/attention_step_loops.h"

namespace hopmix::kernels {
namespace {

// Rows that all heads read before the next ones: they lie side by side.
constexpr int64_t kTile = 64;

// Below this many numbers read, waking the threads costs more than they save.
constexpr int64_t kWorthThreadsHere = int64_t{1} << 18;

/// Heads that one task has of one sequence, in turns over tiles of rows.
template <typename T>
class Heads {
 public:
  using A = Accumulator<T>;

  Heads(const AttentionStepInputs<T>& in, int64_t sequence, int64_t first, int64_t last)
      : in_(in),
        sequence_(sequence),
        first_(first),
        heads_(last - first),
        row_(padded(in.reads + 1)),
        queries_(heads_ * padded(in.key_width)),
        weights_(heads_ * row_),
        sums_(heads_ * padded(in.value_width)) {}

  void run(T* y) {
    load_queries();
    const int64_t own = in_.own_k != nullptr ? 1 : 0, reads = in_.reads + own;
    sweep([&](int64_t h, int64_t begin, int64_t end) {
      loops_.dots(keys(h), query(h), begin, end, weights(h));
    });
    for (int64_t h = 0; h < heads_; ++h) {
      if (own) loops_.dots(own_keys(h), query(h), 0, 1, weights(h) + in_.reads);
      if (reads > 0) loops_.softmax(weights(h), reads);
      std::fill_n(sum(h), in_.value_width, A{0});
    }
    sweep([&](int64_t h, int64_t begin, int64_t end) {
      loops_.sum(values(h), weights(h), begin, end, sum(h));
    });
    for (int64_t h = 0; h < heads_; ++h) {
      if (own) loops_.sum(own_values(h), weights(h) + in_.reads, 0, 1, sum(h));
      T* out = y + (sequence_ * in_.heads + first_ + h) * in_.value_width;
      for (int64_t c = 0; c < in_.value_width; ++c) out[c] = static_cast<T>(sum(h)[c]);
    }
  }

 private:
  template <typename Body>
  void sweep(const Body& body) const {
    for (int64_t begin = 0; begin < in_.reads; begin += kTile) {
      const int64_t end = std::min(begin + kTile, in_.reads);
      for (int64_t h = 0; h < heads_; ++h) body(h, begin, end);
    }
  }

  void load_queries() {
    const int64_t width = in_.key_width;
    for (int64_t h = 0; h < heads_; ++h) {
      const T* from = in_.q + (sequence_ * in_.heads + first_ + h) * width;
      A* to = query(h);
      for (int64_t c = 0; c < width; ++c) {
        to[c] = static_cast<A>(from[c]) * static_cast<A>(in_.scale);
      }
      std::fill(to + width, to + padded(width), A{0});
    }
  }

  HeldRows<T> rows(const T* all, int64_t stride, int64_t h, int64_t width) const {
    return {all + sequence_ * stride + kv_head(h) * width, in_.slots, in_.kv_heads * width, width};
  }
  HeldRows<T> own(const T* all, int64_t h, int64_t width) const {
    return {all + (sequence_ * in_.kv_heads + kv_head(h)) * width, nullptr, width, width};
  }
  HeldRows<T> keys(int64_t h) const { return rows(in_.k, in_.k_stride, h, in_.key_width); }
  HeldRows<T> values(int64_t h) const { return rows(in_.v, in_.v_stride, h, in_.value_width); }
  HeldRows<T> own_keys(int64_t h) const { return own(in_.own_k, h, in_.key_width); }
  HeldRows<T> own_values(int64_t h) const { return own(in_.own_v, h, in_.value_width); }

  int64_t kv_head(int64_t h) const { return (first_ + h) * in_.kv_heads / in_.heads; }
  A* query(int64_t h) const { return queries_.data() + h * padded(in_.key_width); }
  A* weights(int64_t h) const { return weights_.data() + h * row_; }
  A* sum(int64_t h) const { return sums_.data() + h * padded(in_.value_width); }

  const AttentionStepInputs<T>& in_;
  int64_t sequence_, first_, heads_, row_;
  Buffer<A> queries_, weights_, sums_;
  const AttentionStepLoops<T> loops_ = attention_step_loops<T>();
};

}  // namespace

template <typename T>
void attention_step(const AttentionStepInputs<T>& in, T* y) {
  const int64_t work = in.batch * in.reads * in.heads * (in.key_width + in.value_width);
  const bool threads = work >= kWorthThreadsHere && omp_get_max_threads() > 1;
  // A thread alone reads the heads of a token together.
  const int64_t parts = threads ? in.heads : 1;
  parallel_tasks(in.batch * parts, threads ? work : 0, [&](int64_t task) {
    const int64_t part = task % parts;
    Heads<T>(in, task / parts, part * in.heads / parts, (part + 1) * in.heads / parts).run(y);
  });
}

template void attention_step(const AttentionStepInputs<float>&, float*);
template void attention_step(const AttentionStepInputs<double>&, double*);
template void attention_step(const AttentionStepInputs<Bfloat16>&, Bfloat16*);

}  // namespace hopmix::kernels
