// The rule (chunked_heads.h) of the gated delta rule (Yang et al. 2024, arXiv 2412.06464; without
// gates arXiv 2406.06484):
//
//   S' = e^{g_t} S_{t-1},  w_t = v_t - S'^T k_t,  S_t = S' + beta_t k_t w_t^T,  o_t = S_t^T q_t
//
// for a chunk of n tokens, from the state S before it to the state after it, as matrix products.
// Let G be the running sum of g in the chunk, a = e^G, e_j = e^{G_n - G_j}, D_ij = e^{G_i - G_j}
// for j <= i: decays appear only as differences that are not positive, so nothing overflows. With
//
//   M_ij = D_ij k_i . k_j (j < i),   P_ij = D_ij q_i . k_j (j <= i),   U = diag(beta) W:
//
//   W = V - diag(a) K S - M U           by forward substitution; S is known, so one solve of the
//   O = diag(a) Q S + P U               width of V is all, and no inverse is formed
//   S <- a_n S + (diag(e) K)^T U
//
// Backward, from dO and the gradient dS of the state after the chunk:
//
//   X = P^T dO + diag(e) K dS + M^T H,  H = -diag(beta) X      by substitution from the last row up
//   dV = -H,  dbeta_i = X_i . W_i,  dP = dO U^T,  dM = H U^T
//   dQ = diag(a) dO S^T + (D o dP) K
//   dK = diag(a) H S^T + (D o dP)^T Q + (N + N^T) K + diag(e) U dS^T,  N = D o dM
//   dS <- a_n dS + (diag(a) Q)^T dO + (diag(a) K)^T H
//
// and dg_t sums what every decay over t gets: D_ij for j < t <= i, a_i for i >= t, e_j for j < t,
// a_n. No two such sums are subtracted, so the gradient of a strong gate is as small as it is.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "hopmix/kernels/delta_tile.h"
#include "hopmix/ops/chunked_heads.h"

namespace hopmix::ops {

/// beta and log_decay [B,T,H], the latter undefined without gates; their gradients, undefined where
/// they are not wanted.
struct DeltaGates {
  Tensor beta, log_decay, d_beta, d_log_decay;
};

template <typename T, typename O, typename Products>
class DeltaRule {
 public:
  using A = kernels::Accumulator<T>;

  DeltaRule(const ChunkedCall& call, DeltaGates gates)
      : keys_(call.keys()),
        values_(call.values()),
        heads_(call.heads),
        most_(call.rows()),
        gates_(std::move(gates)),
        rows_(11 * most_),
        scores_(2 * most_ * most_),
        p_(most_ * most_),
        w_(most_ * values_),
        u_(most_ * values_),
        read_(most_ * values_),
        columns_(2 * most_ * keys_),
        k_(kMixed ? most_ * keys_ : 0),
        q_(kMixed ? most_ * keys_ : 0),
        columns_left_(kMixed ? 2 * most_ * keys_ : 0),
        state_(keys_ * values_),
        right_(2 * most_ * std::max(keys_, values_)) {
    std::fill_n(ones(), most_, A{1});
  }

  void forward(const Chunk& chunk, const ChunkTiles<A>& tiles, A* state) {
    const int64_t n = chunk.rows();
    enter(chunk);
    const O *k = left(n, keys_, nullptr, tiles.k, k_), *q = left(n, keys_, nullptr, tiles.q, q_);
    const O* s = right(keys_, values_, nullptr, state, state_);
    Products::multiply(n, values_, keys_, q, keys_, s, values_, tiles.o, values_, false);
    if (decays()) table_.scale(n, values_, a(), tiles.o, tiles.o);
    solve(n, k, q, s, tiles.v);
    const O* u = right(n, values_, nullptr, u_.data(), right_);
    Products::multiply(n, values_, n, p_.data(), n, u, values_, tiles.o, values_, true);
    advance_state(n, state);
    Products::release();
  }

  void advance(const Chunk& chunk, const ChunkTiles<A>& tiles, A* state) {
    const int64_t n = chunk.rows();
    enter(chunk);
    solve(n, left(n, keys_, nullptr, tiles.k, k_), nullptr,
          right(keys_, values_, nullptr, state, state_), tiles.v);
    advance_state(n, state);
    kept_.push_back({chunk.token, kernels::Buffer<A>(n * values_)});
    std::copy_n(w_.data(), n * values_, kept_.back().w.data());
    Products::release();
  }

  void backward(const Chunk& chunk, const ChunkTiles<A>& tiles, const A* state,
                const ChunkGradients<A>& d, A* d_state) {
    const int64_t n = chunk.rows();
    if (back_.most < n) back_ = Backward(most_, keys_, values_);
    enter(chunk);
    const O* k = left(n, keys_, nullptr, tiles.k, k_);
    find_errors(chunk, k, state, tiles.v);
    const O* q = left(n, keys_, nullptr, tiles.q, q_);
    pack_columns<O>(k, n, keys_, columns_.data(), 2 * n);
    pack_columns<O>(q, n, keys_, columns_.data() + column(n), 2 * n);
    Products::multiply(n, 2 * n, keys_, k, keys_, columns_.data(), 2 * n, scores_.data(), 2 * n,
                       false);
    const Scores scores{n, 2 * n, scores_.data(), scores_.data() + n, high(), low()};
    table_.weights_transposed(scores, back_.decay.data(), back_.m.data(), p_.data());

    A *h = back_.ho.data(), *d_o = h + n * values_;
    std::copy_n(d.o, n * values_, d_o);
    solve_backward(n, k, d_o, d_state, h);
    if (d.v != nullptr) table_.scale(n, values_, beta(), back_.x.data(), d.v);
    if (gates_.d_beta.defined()) {
      std::fill_n(sums(), n, A{0});
      table_.dots(n, values_, back_.x.data(), w_.data(), sums());
      store(gates_.d_beta, chunk, sums());
    }
    if (d.q != nullptr || d.k != nullptr || wants_decay()) {
      keys_backward(chunk, tiles, scores, state, d, d_state);
    }
    // The rows of columns_ are those of [k; q].
    const O* ho = right(2 * n, values_, decays() ? a() : nullptr, h, right_);
    scale_state(d_state);
    Products::multiply(keys_, values_, 2 * n, columns_left(2 * n), 2 * n, ho, values_, d_state,
                       values_, true);
    Products::release();
  }

 private:
  static constexpr bool kMixed = !std::is_same_v<O, A>;
  static constexpr int64_t kSmall = kernels::kTileLanes;
  static constexpr double kForgotten = -1000;  // e to this is 0 in every type
  using Scores = kernels::DeltaScores<A>;
  template <typename X>
  using Memory = kernels::Buffer<X>;

  // What the backward needs beyond.
  struct Backward {
    Backward() = default;
    Backward(int64_t rows, int64_t keys, int64_t values)
        : most(rows),
          decay(rows * rows),
          m(rows * rows),
          dkk(rows * rows),
          dqk(rows * rows),
          aside(rows * rows),
          dscores(2 * rows * rows),
          x(rows * values),
          ho(2 * rows * values),
          dq(rows * keys),
          dk(rows * keys),
          square(rows * rows),
          u(rows * values),
          ho_left(2 * rows * values),
          ho_columns(2 * rows * values),
          state_left(keys * values),
          state_columns(keys * values) {}
    int64_t most = 0;
    Memory<A> decay, m, dkk, dqk, aside, dscores, x, ho, dq, dk;
    Memory<O> square, u, ho_left, ho_columns, state_left, state_columns;
  };

  // W of a chunk, from the walk that found the states.
  struct Errors {
    int64_t token;
    Memory<A> w;
  };

  bool decays() const { return gates_.log_decay.defined(); }
  bool wants_decay() const { return gates_.d_log_decay.defined(); }
  A* row(int64_t which) const { return rows_.data() + which * most_; }
  A* beta() const { return row(0); }
  A* minus_beta() const { return row(1); }
  A* ones() const { return row(2); }
  A* high() const { return decays() ? row(3) : nullptr; }
  A* low() const { return decays() ? row(4) : nullptr; }
  A* e() const { return decays() ? row(5) : nullptr; }
  A* sums() const { return row(6); }
  A* after() const { return row(7); }                   // what dg_t gets for every t up to a token
  A* before() const { return row(8); }                  // for every t behind a token
  A* a() const { return decays() ? row(9) : nullptr; }  // twice, for [k; q]

  /// Offset of column i in a right factor.
  static int64_t column(int64_t i) { return (std::is_same_v<O, kernels::Bfloat16> ? 2 : 1) * i; }

  /// s_i x_i as a factor: x itself where that is the same, else in `to`.
  const O* left(int64_t n, int64_t width, const A* s, const A* x, const Memory<O>& to) const {
    if constexpr (!kMixed) {
      if (s == nullptr) return x;
    }
    table_.left(n, width, s, x, to.data());
    return to.data();
  }
  const O* right(int64_t n, int64_t width, const A* s, const A* x, const Memory<O>& to) const {
    if constexpr (!kMixed) {
      if (s == nullptr) return x;
    }
    table_.right(n, width, s, x, to.data());
    return to.data();
  }

  /// columns_ [keys, n] as a left factor.
  const O* columns_left(int64_t n) const {
    if constexpr (std::is_same_v<O, kernels::Bfloat16>) {
      kernels::split_pairs(keys_, n, columns_.data(), columns_left_.data());
      return columns_left_.data();
    } else {
      return columns_.data();
    }
  }

  /// Reads what belongs to each token of the chunk.
  void enter(const Chunk& chunk) {
    const int64_t n = chunk.rows();
    const int64_t first = kernels::head_offset(chunk.token, heads_, chunk.head, 1);
    for (int64_t i = 0; i < n; ++i) {
      const bool inside = i < chunk.length;
      beta()[i] = inside ? static_cast<A>(read<T>(gates_.beta)[first + i * heads_]) : A{0};
      minus_beta()[i] = -beta()[i];
    }
    a_n_ = 1;
    if (!decays()) return;
    long double sum = 0;  // high + low holds its digits in float64 too
    for (int64_t i = 0; i < n; ++i) {
      if (i < chunk.length) {
        const double g = static_cast<A>(read<T>(gates_.log_decay)[first + i * heads_]);
        sum += g < kForgotten ? kForgotten : g;  // so that -infinity has a difference
      }
      high()[i] = static_cast<A>(sum);
      low()[i] = static_cast<A>(sum - high()[i]);
      a()[i] = a()[n + i] = std::exp(high()[i]) * (1 + low()[i]);
    }
    for (int64_t i = 0; i < n; ++i) {
      e()[i] = std::exp((high()[n - 1] - high()[i]) + (low()[n - 1] - low()[i]));
    }
    a_n_ = a()[n - 1];
  }

  void store(const Tensor& to, const Chunk& chunk, const A* from) const {
    const int64_t first = kernels::head_offset(chunk.token, heads_, chunk.head, 1);
    for (int64_t i = 0; i < chunk.length; ++i) {
      write<T>(to)[first + i * heads_] = static_cast<T>(from[i]);
    }
  }

  /// W and U, and with q also P; columns_ keeps those of k.
  void solve(int64_t n, const O* k, const O* q, const O* state, const A* v) {
    A *m = scores_.data(), *qk = m + n * n, *mix = read_.data(), *u = u_.data();
    pack_columns<O>(k, n, keys_, columns_.data(), n);
    Products::multiply(n, n, keys_, k, keys_, columns_.data(), n, m, n, false);
    if (q != nullptr) {
      Products::multiply(n, n, keys_, q, keys_, columns_.data(), n, qk, n, false);
    }
    Products::multiply(n, values_, keys_, k, keys_, state, values_, mix, values_, false);
    table_.weights({n, n, m, qk, high(), low()}, m, q != nullptr ? p_.data() : nullptr);
    table_.errors(n, values_, a(), beta(), v, mix, w_.data(), u);
    for (int64_t b = 0; b < n; b += kSmall) {
      A* at = mix + b * values_;  // M U
      if (b == 0) {
        std::fill_n(at, kSmall * values_, A{0});
      } else {
        Products::multiply(kSmall, values_, b, m + b * n, n, u, values_, at, values_, false);
      }
      exact_.substitute(kSmall, values_, false, m + b * n + b, n, ones() + b, minus_beta() + b, at,
                        u + b * values_);
    }
    table_.errors(n, values_, nullptr, beta(), w_.data(), mix, w_.data(), u);
  }

  /// After solve(). `state` becomes that after the chunk.
  void advance_state(int64_t n, A* state) {
    scale_state(state);
    Products::multiply(keys_, values_, n, columns_left(n), n,
                       right(n, values_, e(), u_.data(), right_), values_, state, values_, true);
  }

  void scale_state(A* state) const {
    if (decays()) table_.scale(1, keys_ * values_, &a_n_, state, state);
  }

  /// W and U again: kept, but for the last chunk, whose W the walk over the states did not need.
  void find_errors(const Chunk& chunk, const O* k, const A* state, const A* v) {
    if (kept_.empty() || kept_.back().token != chunk.token) {
      solve(chunk.rows(), k, nullptr, right(keys_, values_, nullptr, state, state_), v);
      return;
    }
    w_ = std::move(kept_.back().w);
    kept_.pop_back();
    table_.scale(chunk.rows(), values_, beta(), w_.data(), u_.data());
  }

  /// X and h = H, and what e_j gets.
  void solve_backward(int64_t n, const O* k, const A* d_o, const A* d_state, A* h) {
    A* x = back_.x.data();
    Products::multiply(n, values_, keys_, k, keys_, right(keys_, values_, nullptr, d_state, state_),
                       values_, x, values_, false);
    if (decays()) table_.scale(n, values_, e(), x, x);
    if (wants_decay()) {
      std::fill_n(before(), n, A{0});
      table_.dots(n, values_, x, u_.data(), before());
    }
    Products::multiply(n, values_, n, p_.data(), n, right(n, values_, nullptr, d_o, right_),
                       values_, x, values_, true);
    std::fill_n(h, n * values_, A{0});
    const A* m = back_.m.data();
    for (int64_t b = n - kSmall; b >= 0; b -= kSmall) {
      const int64_t behind = b + kSmall;
      if (behind < n) {
        Products::multiply(kSmall, values_, n - behind, m + b * n + behind, n, h + behind * values_,
                           values_, x + b * values_, values_, true);
      }
      exact_.substitute_backward(kSmall, values_, false, m + b * n + b, n, minus_beta() + b,
                                 x + b * values_, h + b * values_);
    }
  }

  /// The gradients of q, k and log_decay.
  void keys_backward(const Chunk& chunk, const ChunkTiles<A>& tiles, const Scores& scores,
                     const A* state, const ChunkGradients<A>& d, const A* d_state) {
    const int64_t n = chunk.rows();
    const O* ho = left(2 * n, values_, nullptr, back_.ho.data(), back_.ho_left);
    pack_columns<O>(ho, 2 * n, values_, back_.ho_columns.data(), 2 * n);
    A* dm = back_.dscores.data();
    Products::multiply(n, 2 * n, values_, left(n, values_, nullptr, u_.data(), back_.u), values_,
                       back_.ho_columns.data(), 2 * n, dm, 2 * n, false);
    if (wants_decay()) std::fill_n(sums(), n, A{0});
    A *dkk = back_.dkk.data(), *dqk = back_.dqk.data(), *aside = back_.aside.data();
    table_.weights_backward(scores, back_.decay.data(), back_.m.data(), dm, dm + n, dkk, dqk,
                            wants_decay() ? sums() : nullptr);

    A* dq = d.q != nullptr ? d.q : back_.dq.data();
    A* dk = d.k != nullptr ? d.k : back_.dk.data();
    const O* s = state_columns(state);
    Products::multiply(n, keys_, values_, ho + n * values_, values_, s, keys_, dq, keys_, false);
    Products::multiply(n, keys_, values_, ho, values_, s, keys_, dk, keys_, false);
    if (decays()) {
      table_.scale(n, keys_, a(), dq, dq);
      table_.scale(n, keys_, a(), dk, dk);
    }
    if (wants_decay()) {
      std::fill_n(after(), n, A{0});
      table_.dots(n, keys_, dq, tiles.q, after());
      table_.dots(n, keys_, dk, tiles.k, after());
      store_decay(chunk, state, d_state);
    }
    const O* k = right(n, keys_, nullptr, tiles.k, right_);
    pack_left_transposed<A>(dkk, n, n, n, aside, n);
    table_.sum(n, n, dkk, aside, back_.square.data());
    Products::multiply(n, keys_, n, back_.square.data(), n, k, keys_, dk, keys_, true);
    pack_left_transposed<A>(dqk, n, n, n, aside, n);
    Products::multiply(n, keys_, n, left(n, n, nullptr, aside, back_.square), n, k, keys_, dq,
                       keys_, true);
    Products::multiply(n, keys_, n, left(n, n, nullptr, dqk, back_.square), n,
                       right(n, keys_, nullptr, tiles.q, right_), keys_, dk, keys_, true);
    Products::multiply(n, keys_, values_, left(n, values_, e(), u_.data(), back_.u), values_,
                       state_columns(d_state), keys_, dk, keys_, true);
  }

  /// A state transposed, as a right factor [values, keys].
  const O* state_columns(const A* state) const {
    pack_columns<O>(left(keys_, values_, nullptr, state, back_.state_left), keys_, values_,
                    back_.state_columns.data(), keys_);
    return back_.state_columns.data();
  }

  /// Gathers what every decay over a token gets.
  void store_decay(const Chunk& chunk, const A* state, const A* d_state) const {
    A whole = 0, past = 0;
    table_.dots(1, keys_ * values_, state, d_state, &whole);
    whole *= a_n_;
    for (int64_t t = 0; t < chunk.length; ++t) {
      sums()[t] += whole + past;
      past += before()[t];
    }
    A rest = 0;
    for (int64_t t = chunk.length - 1; t >= 0; --t) sums()[t] += rest += after()[t];
    store(gates_.d_log_decay, chunk, sums());
  }

  int64_t keys_, values_, heads_, most_;
  DeltaGates gates_;
  A a_n_ = 1;
  const kernels::DeltaTable<A, O>& table_ = kernels::delta_tiles<A, O>();
  const kernels::TileTable<A, A>& exact_ = kernels::tiles<A, A>();
  Memory<A> rows_, scores_;
  Memory<O> p_;
  Memory<A> w_, u_, read_;
  Memory<O> columns_, k_, q_, columns_left_, state_, right_;
  Backward back_;
  std::vector<Errors> kept_;
};

}  // namespace hopmix::ops
