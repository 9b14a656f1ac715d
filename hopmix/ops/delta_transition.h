// What a chunk of the gated delta rule (delta_rule.h has its equations and most names) is to a rule
// that holds many states (log_linear.h): it acts on each of them as
//
//   o = A v + Q S,   S' = F S + Y^T v
//
// with, in the notation there,
//
//   X = (1 + diag(beta) M)^{-1} diag(beta)      by forward substitution
//   A = P X,   Y = X^T diag(e) K,   Q' = diag(a) Q - A diag(a) K,   F = a_n - Y^T diag(a) K,
//
// Q' being the Q of log_linear.h. Backward, from dA, dQ', dY and the sum R of S_l (dS_l')^T:
//
//   dA <- dA - dQ' (diag(a) K)^T,   dY <- dY - diag(a) K R
//   dP = dA X^T,   dX = P^T dA + diag(e) K dY^T
//   Z = dX - M^T diag(beta) Z       by substitution from the last row up
//   dbeta_i = Z_i . (1 - M X)_i,   dM = -diag(beta) Z X^T
//   d(diag(a) Q) = dQ',   d(diag(a) K) = -A^T dQ' - Y R^T,   d(diag(e) K) = X dY,   da_n = trace R
//
// from which the gradients of q, k and the log decays follow as in delta_rule.h.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "hopmix/kernels/chunked/delta_tile.h"
#include "hopmix/ops/chunked_heads.h"
#include "hopmix/ops/decays.h"
#include "hopmix/ops/delta_rule.h"

namespace hopmix::ops {

template <typename T, typename O>
class DeltaTransition {
 public:
  using A = kernels::Accumulator<T>;

  DeltaTransition(const ChunkedCall& call, DeltaGates gates)
      : heads_(call.heads),
        keys_(call.keys()),
        values_(call.values()),
        most_(call.rows()),
        gates_(std::move(gates)),
        rows_(kRows * most_),
        m_(square()),
        qk_(square()),
        x_(square()),
        mix_(square()),
        w_(square()),
        a_(square()),
        turned_a_(square()),
        d_a_(square()),
        early_k_(tall()),
        late_k_(tall()),
        read_(tall()),
        y_(tall()),
        f_(keys_ * keys_),
        carried_(call.state_size()),
        p_(square()),
        left_(larger(), /*transposes=*/true),
        right_(larger(), /*transposes=*/true) {
    std::fill_n(ones(), most_, A{1});
  }

  void enter(const Chunk& chunk, const A* q, const A* k) {
    chunk_ = chunk;
    n_ = chunk.rows();
    q_ = q;
    k_ = k;
    for (int64_t i = 0; i < n_; ++i) {
      beta()[i] = i < chunk.length ? static_cast<A>(read<T>(gates_.beta)[at(i)]) : A{0};
      minus_beta()[i] = -beta()[i];
    }
    const T* g = read<T>(gates_.log_decay);
    sums_.add_up(chunk.length, n_, [&](int64_t i) { return static_cast<A>(g[at(i)]); });
    loops_.scale_rows(k, sums_.start.data(), n_, keys_, early_k_.data());
    loops_.scale_rows(k, sums_.end.data(), n_, keys_, late_k_.data());
    has_f_ = false;
    solve();
    // Y, and with queries A and Q'.
    Visible::apply(n_, keys_, left_.left_transposed(x_.data(), n_, n_),
                   right_.right(late_k_.data(), n_, keys_), true, y_.data(), false);
    if (q == nullptr) return;
    Visible::apply(n_, n_, p_.data(), right_.right(x_.data(), n_, n_), false, a_.data(), false);
    kernels::multiply<O>(n_, keys_, n_, left_.left(a_.data(), n_, n_), n_,
                       right_.right(early_k_.data(), n_, keys_), keys_, read_.data(), keys_, false);
    for (int64_t i = 0; i < n_; ++i) {
      const A *from = q + i * keys_, decay = sums_.start[i];
      A* to = read_.data() + i * keys_;
#pragma omp simd
      for (int64_t c = 0; c < keys_; ++c) to[c] = decay * from[c] - to[c];
    }
  }

  /// Q' and Y.
  const A* q() const { return read_.data(); }
  const A* k() const { return y_.data(); }

  /// A [n, n].
  const A* scores(bool transposed) const {
    if (!transposed) return a_.data();
    kernels::pack_left_transposed<A>(a_.data(), n_, n_, n_, turned_a_.data(), n_);
    return turned_a_.data();
  }

  /// S = F S.
  void carry(A* state) {
    const int64_t size = keys_ * values_;
    make_f();
    kernels::multiply<O>(keys_, values_, keys_, left_.left(f_.data(), keys_, keys_), keys_,
                       right_.right(state, keys_, values_), values_, carried_.data(), values_,
                       false);
    decay_and_take(size, carried_.data(), state);
  }

  /// From S and dLoss/d(F S), which becomes dLoss/dS.
  void carry_back(const A* state, A* d_state) {
    if (wants()) {
      Backward& b = back();
      kernels::multiply<O>(keys_, keys_, values_, left_.left(state, keys_, values_), values_,
                         right_.right_transposed(d_state, keys_, values_), keys_, b.r.data(), keys_,
                         /*add=*/true);
    }
    make_f();
    kernels::multiply<O>(keys_, values_, keys_, left_.left_transposed(f_.data(), keys_, keys_), keys_,
                       right_.right(d_state, keys_, values_), values_, carried_.data(), values_,
                       false);
    decay_and_take(keys_ * values_, carried_.data(), d_state);
  }

  /// Where the gradients of A^T, Q' and Y go; null: not wanted.
  A* d_weights() const { return d_a_.data(); }
  A* d_q(const ChunkGradients<A>& d) {
    wanted_ = d.q != nullptr || d.k != nullptr || gates_.d_beta.defined() || wants_decay();
    return wanted_ ? d.q != nullptr ? d.q : back().spare_q.data() : nullptr;
  }
  A* d_k(const ChunkGradients<A>& d) {
    return wanted_ ? d.k != nullptr ? d.k : back().spare_k.data() : nullptr;
  }

  /// From them the gradients of q and k, in place, and those of the gates.
  void backward(A* d_q, A* d_k) {
    Backward& b = back();
    A *const dx = b.dx.data(), *const h = b.h.data();
    finish_direct(d_q, d_k);
    // The products of the chunk with rows as keys.
    const O* k = left_.left(k_, n_, keys_);
    Visible::make(n_, keys_, k, right_.right_transposed(k_, n_, keys_), true, m_.data());
    Visible::make(n_, keys_, k, right_.right_transposed(q_, n_, keys_), true, qk_.data());
    const kernels::DeltaScores<A> scores{n_, m_.data(), qk_.data(), sums_.high.data(),
                                         sums_.low.data()};
    table_.weights_transposed(scores, b.decay.data(), b.m.data(), p_.data());

    kernels::multiply<O>(n_, n_, n_, p_.data(), n_, right_.right_transposed(d_a_.data(), n_, n_), n_,
                       dx, n_, false);
    kernels::multiply<O>(n_, n_, keys_, left_.left(late_k_.data(), n_, keys_), keys_,
                       right_.right_transposed(d_k, n_, keys_), n_, dx, n_, true);
    const O* x = left_.left(x_.data(), n_, n_);
    kernels::multiply<O>(n_, n_, n_, x, n_, right_.right(d_a_.data(), n_, n_), n_, b.dp.data(), n_,
                       false);
    kernels::multiply<O>(n_, keys_, n_, x, n_, right_.right(d_k, n_, keys_), keys_, b.late.data(),
                       keys_, false);
    solve_backward(dx, h);
    if (gates_.d_beta.defined()) {
      loops_.row_dots(dx, w_.data(), n_, n_, row(3));
      store(gates_.d_beta, row(3));
    }
    kernels::multiply<O>(n_, n_, n_, x, n_, right_.right_transposed(h, n_, n_), n_, b.dm.data(), n_,
                       false);
    table_.weights_backward(scores, b.decay.data(), b.m.data(), b.dm.data(), b.dp.data(),
                            b.dm.data(), b.dp.data(), row(4), wants_decay() ? row(3) : nullptr);
    keys_backward(d_q, d_k);
    std::fill_n(b.r.data(), keys_ * keys_, A{0});
  }

 private:
  static constexpr int64_t kSmall = kernels::kTileLanes;
  static constexpr int64_t kRows = 7;
  using Visible = kernels::VisibleProducts<O>;
  using Memory = kernels::Buffer<A>;

  // What the backward needs beyond.
  struct Backward {
    Backward(int64_t rows, int64_t keys)
        : decay(rows * rows),
          m(rows * rows),
          dx(rows * rows),
          h(rows * rows),
          dp(rows * rows),
          dm(rows * rows),
          early(rows * keys),
          late(rows * keys),
          spare_q(rows * keys),
          spare_k(rows * keys),
          r(keys * keys) {
      std::fill_n(r.data(), keys * keys, A{0});
    }
    Memory decay, m, dx, h, dp, dm, early, late, spare_q, spare_k, r;
  };

  int64_t square() const { return most_ * most_; }
  int64_t tall() const { return most_ * keys_; }
  int64_t larger() const {
    const int64_t side = std::max({most_, keys_, values_});
    return std::max(most_, keys_) * side;
  }
  Backward& back() {
    if (!back_) back_.emplace(most_, keys_);
    return *back_;
  }
  bool wants_decay() const { return gates_.d_log_decay.defined(); }
  bool wants() const { return wanted_; }
  A* row(int64_t which) const { return rows_.data() + which * most_; }
  A* beta() const { return row(0); }
  A* minus_beta() const { return row(1); }
  A* ones() const { return row(2); }
  int64_t at(int64_t i) const {
    return kernels::head_offset(chunk_.token + i, heads_, chunk_.head, 1);
  }
  void store(const Tensor& to, const A* from) const {
    for (int64_t i = 0; i < chunk_.length; ++i) write<T>(to)[at(i)] = static_cast<T>(from[i]);
  }

  /// M, P if there are queries, X and 1 - M X.
  void solve() {
    A *m = m_.data(), *x = x_.data(), *mix = mix_.data();
    const O* columns = right_.right_transposed(k_, n_, keys_);
    Visible::make(n_, keys_, left_.left(k_, n_, keys_), columns, false, m);
    if (q_ != nullptr) {
      Visible::make(n_, keys_, left_.left(q_, n_, keys_), columns, false, qk_.data());
    }
    table_.weights({n_, m, qk_.data(), sums_.high.data(), sums_.low.data()}, m,
                   q_ != nullptr ? p_.data() : nullptr);
    std::fill_n(x, n_ * n_, A{0});
    for (int64_t i = 0; i < n_; ++i) x[i * n_ + i] = beta()[i];
    for (int64_t b = 0; b < n_; b += kSmall) {
      A* at = mix + b * n_;  // M X
      if (b == 0) {
        std::fill_n(at, kSmall * n_, A{0});
      } else {
        multiply_exact(kSmall, n_, b, m + b * n_, n_, x, at);
      }
      exact_.substitute(kSmall, n_, false, m + b * n_ + b, n_, ones() + b, minus_beta() + b, at,
                        x + b * n_);
    }
    for (int64_t i = 0; i < n_; ++i) {
      A *to = w_.data() + i * n_, *from = mix + i * n_;
#pragma omp simd
      for (int64_t j = 0; j < n_; ++j) to[j] = -from[j];
      to[i] += 1;
    }
  }

  /// c = a b with b and c [*, n], in A.
  static void multiply_exact(int64_t m, int64_t n, int64_t k, const A* a, int64_t lda, const A* b,
                             A* c, bool add = false) {
    kernels::multiply<O>(m, n, k, a, lda, b, n, c, n, add);
  }

  /// dX becomes Z, and h = -diag(beta) Z.
  void solve_backward(A* dx, A* h) {
    const A* m = back().m.data();
    std::fill_n(h, n_ * n_, A{0});
    for (int64_t b = n_ - kSmall; b >= 0; b -= kSmall) {
      const int64_t next = b + kSmall;
      if (next < n_) {
        multiply_exact(kSmall, n_, n_ - next, m + b * n_ + next, n_, h + next * n_, dx + b * n_,
                       true);
      }
      exact_.substitute_backward(kSmall, n_, false, m + b * n_ + b, n_, minus_beta() + b,
                                 dx + b * n_, h + b * n_);
    }
  }

  /// Y^T diag(a) K.
  void make_f() {
    if (std::exchange(has_f_, true)) return;
    kernels::multiply<O>(keys_, keys_, n_, left_.left_transposed(y_.data(), n_, keys_), n_,
                       right_.right(early_k_.data(), n_, keys_), keys_, f_.data(), keys_, false);
  }

  /// x = a_n x - y
  void decay_and_take(int64_t size, const A* y, A* x) const {
    const A decay = sums_.all;
#pragma omp simd
    for (int64_t c = 0; c < size; ++c) x[c] = decay * x[c] - y[c];
  }

  /// What Q' and F add to dA and dY, and the gradient of diag(a) K.
  void finish_direct(const A* d_q, A* d_k) {
    Backward& b = back();
    A* const aside = b.dx.data();
    Visible::make(n_, keys_, left_.left(early_k_.data(), n_, keys_),
                  right_.right_transposed(d_q, n_, keys_), true, aside);
    loops_.mask(aside, nullptr, n_, true, aside);
    subtract(n_ * n_, aside, d_a_.data());
    kernels::multiply<O>(n_, keys_, n_, left_.left_transposed(a_.data(), n_, n_), n_,
                       right_.right(d_q, n_, keys_), keys_, b.early.data(), keys_, false);
    kernels::multiply<O>(n_, keys_, keys_, left_.left(y_.data(), n_, keys_), keys_,
                       right_.right_transposed(b.r.data(), keys_, keys_), keys_, b.early.data(),
                       keys_, true);
    kernels::multiply<O>(n_, keys_, keys_, left_.left(early_k_.data(), n_, keys_), keys_,
                       right_.right(b.r.data(), keys_, keys_), keys_, b.late.data(), keys_, false);
    subtract(n_ * keys_, b.late.data(), d_k);
    for (int64_t c = 0; c < n_ * keys_; ++c) b.early.data()[c] = -b.early.data()[c];
  }

  /// The gradients of q and k from those of diag(a) Q (in d_q), diag(a) K, diag(e) K, P and M; and
  /// those of the log decays.
  void keys_backward(A* d_q, A* d_k) {
    Backward& b = back();
    loops_.scale_rows(d_q, sums_.start.data(), n_, keys_, d_q);
    loops_.scale_rows(b.early.data(), sums_.start.data(), n_, keys_, d_k);
    loops_.scale_rows(b.late.data(), sums_.end.data(), n_, keys_, b.late.data());
    if (wants_decay()) store_decay(d_q, d_k);
    table_.add(n_ * keys_, b.late.data(), d_k);

    A *const dkk = b.dm.data(), *const dqk = b.dp.data(), *const aside = b.dx.data();
    const O* k = right_.right(k_, n_, keys_);
    Visible::apply(n_, keys_, left_.left_transposed(dqk, n_, n_), k, false, d_q, true);
    kernels::pack_left_transposed<A>(dkk, n_, n_, n_, aside, n_);
    table_.add(n_ * n_, dkk, aside);
    kernels::multiply<O>(n_, keys_, n_, left_.left(aside, n_, n_), n_, k, keys_, d_k, keys_, true);
    Visible::apply(n_, keys_, left_.left(dqk, n_, n_), right_.right(q_, n_, keys_), true, d_k,
                   true);
  }

  /// Gathers what every decay over a token gets.
  void store_decay(const A* d_q, const A* d_k) {
    const Backward& b = back();
    A *const sums = row(3), *const up_to = row(4), *const up_to_k = row(5), *const behind = row(6);
    A past = 0, rest = 0;
    for (int64_t c = 0; c < keys_; ++c) past += b.r.data()[c * keys_ + c];
    past *= sums_.all;
    loops_.row_dots(d_q, q_, n_, keys_, up_to);
    loops_.row_dots(d_k, k_, n_, keys_, up_to_k);
    loops_.row_dots(b.late.data(), k_, n_, keys_, behind);
    for (int64_t t = 0; t < n_; ++t) {
      sums[t] += past;
      past += behind[t];
    }
    for (int64_t t = n_ - 1; t >= 0; --t) {
      rest += up_to[t] + up_to_k[t];
      sums[t] += rest;
    }
    store(gates_.d_log_decay, sums);
  }

  static void subtract(int64_t size, const A* x, A* y) {
#pragma omp simd
    for (int64_t c = 0; c < size; ++c) y[c] -= x[c];
  }

  int64_t heads_, keys_, values_, most_, n_ = 0;
  DeltaGates gates_;
  Chunk chunk_{};
  const A *q_ = nullptr, *k_ = nullptr;
  bool has_f_ = false, wanted_ = false;
  DecaySums<A> sums_;
  Memory rows_, m_, qk_, x_, mix_, w_, a_, turned_a_, d_a_, early_k_, late_k_, read_, y_, f_,
      carried_;
  kernels::Buffer<O> p_;
  kernels::Operand<O, A> left_, right_;
  std::optional<Backward> back_;
  const kernels::DeltaTable<A, O> table_ = kernels::delta_tiles<A, O>();
  const kernels::TileTable<A, A>& exact_ = kernels::tiles<A, A>();
  const kernels::ChunkLoops<A> loops_ = kernels::chunk_loops<A>();
};

}  // namespace hopmix::ops
