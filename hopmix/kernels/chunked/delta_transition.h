// A chunk of the gated delta rule for a rule with many states (log_linear.h): the A, Q, Y and F of
// README.md, "Many states", from right-hand sides R = 1 of delta_chunk.h.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "hopmix/kernels/chunked/delta_chunk.h"
#include "hopmix/kernels/chunked/delta_head_decay.h"

namespace hopmix::kernels {

/// beta and log_decay [B,T,H]; their gradients, null if not wanted.
template <typename T>
struct DeltaGates {
  const T *beta, *log_decay;
  T *d_beta, *d_log_decay;
};

template <typename T, typename O>
class DeltaTransition {
 public:
  using A = Accumulator<T>;

  DeltaTransition(const ChunkedSizes& sizes, const DeltaGates<T>& gates)
      : keys_(sizes.keys()),
        values_(sizes.values()),
        most_(sizes.rows()),
        delta_(sizes, most_, {sizes, gates.log_decay, gates.d_log_decay}, gates.beta, gates.d_beta),
        x_(square()),
        w_(square()),
        a_(square()),
        turned_a_(square()),
        d_a_(square()),
        read_(most_ * keys_),
        y_(most_ * keys_),
        f_(keys_ * keys_),
        carried_(sizes.state_size()),
        left_(larger(), /*transposes=*/true),
        right_(larger(), /*transposes=*/true),
        other_right_(square(), /*transposes=*/true) {}

  void enter(const Chunk& chunk, const A* q, const A* k) {
    n_ = chunk.rows();
    delta_.enter(chunk, q, k);
    const Decay& decay = delta_.decay();
    delta_.decay().make_scores();
    has_f_ = false;
    A *const x = x_.data(), *const w = w_.data();
    std::fill_n(x, n_ * n_, A{0});
    std::fill_n(w, n_ * n_, A{0});
    for (int64_t i = 0; i < n_; ++i) {
      x[i * n_ + i] = delta_.beta()[i];
      w[i * n_ + i] = 1;
    }
    delta_.solve(n_, x, w);
    Visible::apply(n_, keys_, left_.left_transposed(x, n_, n_),
                   right_.right(decay.late_k(), n_, keys_), true, y_.data(), false);
    if (q == nullptr) return;
    Visible::apply(n_, n_, decay.p(), right_.right(x, n_, n_), false, a_.data(), false);
    Visible::apply(n_, keys_, left_.left(a_.data(), n_, n_),
                   right_.right(decay.early_k(), n_, keys_), false, read_.data(), false);
    take_from(n_ * keys_, decay.early_q(), read_.data());
  }

  /// Q and Y.
  const A* q() const { return read_.data(); }
  const A* k() const { return y_.data(); }

  /// A [n, n].
  const A* scores(bool transposed) const {
    if (!transposed) return a_.data();
    pack_left_transposed<A>(a_.data(), n_, n_, n_, turned_a_.data(), n_);
    return turned_a_.data();
  }

  /// S = F S.
  void carry(A* state) {
    make_f();
    multiply<O>(keys_, values_, keys_, left_.left(f_.data(), keys_, keys_), keys_,
                right_.right(state, keys_, values_), values_, carried_.data(), values_, false);
    decay_and_take(carried_.data(), state);
  }

  /// From S and dLoss/d(F S), which becomes dLoss/dS.
  void carry_back(const A* state, A* d_state) {
    if (wanted_) {
      multiply<O>(keys_, keys_, values_, left_.left(state, keys_, values_), values_,
                  right_.right_transposed(d_state, keys_, values_), keys_, back().r.data(), keys_,
                  /*add=*/true);
    }
    make_f();
    multiply<O>(keys_, values_, keys_, left_.left_transposed(f_.data(), keys_, keys_), keys_,
                right_.right(d_state, keys_, values_), values_, carried_.data(), values_, false);
    decay_and_take(carried_.data(), d_state);
  }

  /// The gradients of A^T, Q and Y are stored here; null if not wanted.
  A* d_weights() const { return d_a_.data(); }
  A* d_q(const ChunkGradients<A>& d) {
    wanted_ = d.q != nullptr || d.k != nullptr || delta_.wants_gradient();
    return wanted_ ? d.q != nullptr ? d.q : back().spare_q.data() : nullptr;
  }
  A* d_k(const ChunkGradients<A>& d) {
    return wanted_ ? d.k != nullptr ? d.k : back().spare_k.data() : nullptr;
  }

  /// From these, computes the gradients of q and k, in place, and of the gates.
  void backward(A* d_q, A* d_k) {
    Backward& b = back();
    Decay& decay = delta_.decay();
    A *const dx = b.dx.data(), *const h = b.h.data(), *const d_a = d_a_.data();
    finish_direct(d_q, d_k);
    decay.make_transposed();
    multiply<O>(n_, n_, keys_, left_.left(decay.late_k(), n_, keys_), keys_,
                right_.right_transposed(d_k, n_, keys_), n_, dx, n_, false);
    Visible::apply(n_, n_, decay.p_transposed(), right_.right_transposed(d_a, n_, n_), true, dx,
                   true);
    Visible::apply(n_, keys_, left_.left(x_.data(), n_, n_), right_.right(d_k, n_, keys_), false,
                   b.late.data(), false);
    delta_.solve_backward(n_, dx, h);
    delta_.store_gradient(n_, dx, w_.data());
    delta_.scores_backward(n_, x_.data(), right_.right_transposed(h, n_, n_),
                           other_right_.right(d_a, n_, n_));
    A trace = 0;
    for (int64_t c = 0; c < keys_; ++c) trace += b.r.data()[c * keys_ + c];
    decay.carry(trace);
    std::copy_n(b.early.data(), n_ * keys_, d_k);
    decay.backward(d_q, d_k, b.late.data());
    std::fill_n(b.r.data(), keys_ * keys_, A{0});
  }

 private:
  using Decay = DeltaHeadDecay<T, O>;
  using Visible = VisibleProducts<O>;
  using Memory = Buffer<A>;

  // Additional memory for the backward.
  struct Backward {
    Backward(int64_t rows, int64_t keys)
        : dx(rows * rows),
          h(rows * rows),
          early(rows * keys),
          late(rows * keys),
          spare_q(rows * keys),
          spare_k(rows * keys),
          r(keys * keys) {
      std::fill_n(r.data(), keys * keys, A{0});
    }
    Memory dx, h, early, late, spare_q, spare_k, r;
  };

  int64_t square() const { return most_ * most_; }
  int64_t larger() const {
    const int64_t side = std::max({most_, keys_, values_});
    return std::max(most_, keys_) * side;
  }
  Backward& back() {
    if (!back_) back_.emplace(most_, keys_);
    return *back_;
  }

  /// Y^T early_k.
  void make_f() {
    if (std::exchange(has_f_, true)) return;
    multiply<O>(keys_, keys_, n_, left_.left_transposed(y_.data(), n_, keys_), n_,
                right_.right(delta_.decay().early_k(), n_, keys_), keys_, f_.data(), keys_, false);
  }

  /// x = D x - y, states.
  void decay_and_take(const A* y, A* x) const {
    const A decay = delta_.decay().all();
    const int64_t size = keys_ * values_;
#pragma omp simd
    for (int64_t c = 0; c < size; ++c) x[c] = decay * x[c] - y[c];
  }

  /// y = x - y
  static void take_from(int64_t size, const A* x, A* y) {
#pragma omp simd
    for (int64_t c = 0; c < size; ++c) y[c] = x[c] - y[c];
  }

  static void subtract(int64_t size, const A* x, A* y) {
#pragma omp simd
    for (int64_t c = 0; c < size; ++c) y[c] -= x[c];
  }

  /// The contribution of Q and F to dA and dY, and the gradient of early_k.
  void finish_direct(const A* d_q, A* d_k) {
    Backward& b = back();
    A *const aside = b.dx.data(), *const early = b.early.data();
    const A* early_k = delta_.decay().early_k();
    Visible::make(n_, keys_, left_.left(early_k, n_, keys_),
                  right_.right_transposed(d_q, n_, keys_), true, aside);
    loops_.mask(aside, nullptr, n_, true, aside);
    subtract(n_ * n_, aside, d_a_.data());
    Visible::apply(n_, keys_, left_.left_transposed(a_.data(), n_, n_),
                   right_.right(d_q, n_, keys_), true, early, false);
    multiply<O>(n_, keys_, keys_, left_.left(y_.data(), n_, keys_), keys_,
                right_.right_transposed(b.r.data(), keys_, keys_), keys_, early, keys_, true);
    for (int64_t c = 0; c < n_ * keys_; ++c) early[c] = -early[c];
    multiply<O>(n_, keys_, keys_, left_.left(early_k, n_, keys_), keys_,
                right_.right(b.r.data(), keys_, keys_), keys_, b.late.data(), keys_, false);
    subtract(n_ * keys_, b.late.data(), d_k);
  }

  int64_t keys_, values_, most_, n_ = 0;
  DeltaChunk<T, O, Decay> delta_;
  bool has_f_ = false, wanted_ = false;
  Memory x_, w_, a_, turned_a_, d_a_, read_, y_, f_, carried_;
  Operand<O, A> left_, right_, other_right_;
  std::optional<Backward> back_;
  const ChunkLoops<A> loops_ = chunk_loops<A>();
};

}  // namespace hopmix::kernels
