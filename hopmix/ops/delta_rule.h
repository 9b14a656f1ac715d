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
#include <optional>
#include <utility>
#include <vector>

#include "hopmix/kernels/chunked/delta_tile.h"
#include "hopmix/ops/chunked_heads.h"

namespace hopmix::ops {

/// beta and log_decay [B,T,H], the latter undefined without gates; their gradients, undefined where
/// they are not wanted.
struct DeltaGates {
  Tensor beta, log_decay, d_beta, d_log_decay;
};

template <typename T, typename O>
class DeltaRule {
 public:
  using A = kernels::Accumulator<T>;

  DeltaRule(const ChunkedCall& call, DeltaGates gates)
      : keys_(call.keys()),
        values_(call.values()),
        heads_(call.heads),
        most_(call.rows()),
        gates_(std::move(gates)),
        rows_(kRows * most_),
        kk_(most_ * most_),
        qk_(most_ * most_),
        k_columns_(most_ * keys_),
        w_(most_ * values_),
        u_(most_ * values_),
        mix_(most_ * values_),
        scaled_(most_ * std::max(keys_, values_)),
        p_(most_ * most_),
        k_(most_ * keys_),
        q_(most_ * keys_),
        turned_(most_ * keys_),
        state_(keys_ * values_),
        tokens_(most_ * std::max(keys_, values_)) {
    std::fill_n(ones(), most_, A{1});
  }

  void forward(const Chunk& chunk, const ChunkTiles<A>& tiles, A* state) {
    const int64_t n = chunk.rows();
    enter(chunk);
    const O *k = k_.left(tiles.k, n, keys_), *q = q_.left(tiles.q, n, keys_);
    const O* s = state_.right(state, keys_, values_);
    kernels::multiply<O>(n, values_, keys_, q, keys_, s, values_, tiles.o, values_, false);
    scale(a(), n, values_, tiles.o);
    solve(n, tiles.k, k, q, s, tiles.v);
    Visible::apply(n, values_, p_.data(), tokens_.right(u_.data(), n, values_), false, tiles.o,
                   true);
    advance_state(n, state);
    kernels::release_gemm();
  }

  void advance(const Chunk& chunk, const ChunkTiles<A>& tiles, A* state) {
    const int64_t n = chunk.rows();
    enter(chunk);
    solve(n, tiles.k, k_.left(tiles.k, n, keys_), nullptr, state_.right(state, keys_, values_),
          tiles.v);
    advance_state(n, state);
    kept_.push_back({chunk.token, Memory(n * values_)});
    std::copy_n(w_.data(), n * values_, kept_.back().w.data());
    kernels::release_gemm();
  }

  void backward(const Chunk& chunk, const ChunkTiles<A>& tiles, const A* state,
                const ChunkGradients<A>& d, A* d_state) {
    const int64_t n = chunk.rows();
    if (!back_) back_.emplace(most_, keys_, values_);
    enter(chunk);
    const O* k = k_.left(tiles.k, n, keys_);
    find_errors(chunk, tiles, k, state);
    kernels::pack_columns<A>(tiles.k, n, keys_, k_columns_.data(), n);
    kernels::pack_columns<A>(tiles.q, n, keys_, back_->q_columns.data(), n);
    Visible::make(n, keys_, k, turned_.right(k_columns_.data(), keys_, n), true, kk_.data());
    Visible::make(n, keys_, k, turned_.right(back_->q_columns.data(), keys_, n), true, qk_.data());
    const Scores scores{n, kk_.data(), qk_.data(), high(), low()};
    table_.weights_transposed(scores, back_->decay.data(), back_->m.data(), p_.data());

    A *x = back_->x.data(), *h = back_->h.data();
    solve_backward(n, k, d.o, d_state);
    if (d.v != nullptr) loops_.scale_rows(x, beta(), n, values_, d.v);
    if (gates_.d_beta.defined()) {
      loops_.row_dots(x, w_.data(), n, values_, sums());
      store(gates_.d_beta, chunk, sums());
    }
    if (d.q != nullptr || d.k != nullptr || wants_decay()) {
      keys_backward(chunk, tiles, scores, state, d, d_state);
    }
    scale_state(d_state);
    kernels::multiply<O>(keys_, values_, n, turned_.left(k_columns_.data(), keys_, n), n,
                       tokens_.right(scaled(a(), n, values_, h), n, values_), values_, d_state,
                       values_, true);
    kernels::multiply<O>(keys_, values_, n, turned_.left(back_->q_columns.data(), keys_, n), n,
                       tokens_.right(scaled(a(), n, values_, d.o), n, values_), values_, d_state,
                       values_, true);
    kernels::release_gemm();
  }

 private:
  static constexpr int64_t kSmall = kernels::kTileLanes;
  static constexpr int64_t kRows = 11;         // those below
  static constexpr double kForgotten = -1000;  // e to this is 0 in every type
  using Scores = kernels::DeltaScores<A>;
  using Memory = kernels::Buffer<A>;
  using Factor = kernels::Operand<O, A>;
  using Visible = kernels::VisibleProducts<O>;

  // What the backward needs beyond.
  struct Backward {
    Backward(int64_t rows, int64_t keys, int64_t values)
        : q_columns(rows * keys),
          decay(rows * rows),
          m(rows * rows),
          dkk(rows * rows),
          dqk(rows * rows),
          aside(rows * rows),
          x(rows * values),
          h(rows * values),
          token_columns(rows * values),
          state_columns(keys * values),
          dq(rows * keys),
          dk(rows * keys),
          square(rows * rows),
          u(rows * values),
          columns(rows * values) {}
    Memory q_columns, decay, m, dkk, dqk, aside, x, h, token_columns, state_columns, dq, dk;
    Factor square, u, columns;
  };

  // W of a chunk, from the walk that found the states.
  struct Errors {
    int64_t token;
    Memory w;
  };

  bool decays() const { return gates_.log_decay.defined(); }
  bool wants_decay() const { return gates_.d_log_decay.defined(); }
  A* row(int64_t which) const { return rows_.data() + which * most_; }
  A* gate_row(int64_t which) const { return decays() ? row(which) : nullptr; }
  A* beta() const { return row(0); }
  A* minus_beta() const { return row(1); }
  A* ones() const { return row(2); }
  A* sums() const { return row(3); }
  A* scratch() const { return row(4); }
  A* high() const { return gate_row(5); }
  A* low() const { return gate_row(6); }
  A* a() const { return gate_row(7); }
  A* e() const { return gate_row(8); }
  A* up_to() const { return row(9); }    // what a_i gets
  A* behind() const { return row(10); }  // what e_j gets

  /// x_i *= s_i; nothing without gates.
  void scale(const A* s, int64_t n, int64_t width, A* x) const {
    if (s != nullptr) loops_.scale_rows(x, s, n, width, x);
  }
  /// The same beside x.
  const A* scaled(const A* s, int64_t n, int64_t width, const A* x) const {
    if (s == nullptr) return x;
    loops_.scale_rows(x, s, n, width, scaled_.data());
    return scaled_.data();
  }
  void scale_state(A* state) const {
    if (decays()) loops_.scale_rows(state, &a()[last_], 1, keys_ * values_, state);
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
    last_ = n - 1;
    if (!decays()) return;
    long double sum = 0;  // high + low holds its digits in float64 too
    for (int64_t i = 0; i < n; ++i) {
      if (i < chunk.length) {
        const double g = static_cast<A>(read<T>(gates_.log_decay)[first + i * heads_]);
        sum += g < kForgotten ? kForgotten : g;  // so that -infinity has a difference
      }
      high()[i] = static_cast<A>(sum);
      low()[i] = static_cast<A>(sum - high()[i]);
      a()[i] = std::exp(high()[i]) * (1 + low()[i]);
    }
    for (int64_t i = 0; i < n; ++i) {
      e()[i] = std::exp((high()[last_] - high()[i]) + (low()[last_] - low()[i]));
    }
  }

  void store(const Tensor& to, const Chunk& chunk, const A* from) const {
    const int64_t first = kernels::head_offset(chunk.token, heads_, chunk.head, 1);
    for (int64_t i = 0; i < chunk.length; ++i) {
      write<T>(to)[first + i * heads_] = static_cast<T>(from[i]);
    }
  }

  /// U and, without q, W; with q P. `k`, `q` and `state` are factors, `keys` and `v` tiles.
  void solve(int64_t n, const A* keys, const O* k, const O* q, const O* state, const A* v) {
    A *m = kk_.data(), *mix = mix_.data(), *u = u_.data();
    kernels::pack_columns<A>(keys, n, keys_, k_columns_.data(), n);
    const O* columns = turned_.right(k_columns_.data(), keys_, n);
    Visible::make(n, keys_, k, columns, false, m);
    if (q != nullptr) Visible::make(n, keys_, q, columns, false, qk_.data());
    kernels::multiply<O>(n, values_, keys_, k, keys_, state, values_, mix, values_, false);
    table_.weights({n, m, qk_.data(), high(), low()}, m, q != nullptr ? p_.data() : nullptr);
    table_.errors(n, values_, a(), beta(), v, mix, w_.data(), u);
    for (int64_t b = 0; b < n; b += kSmall) {
      A* at = mix + b * values_;  // M U
      if (b == 0) {
        std::fill_n(at, kSmall * values_, A{0});
      } else {
        kernels::multiply<O>(kSmall, values_, b, m + b * n, n, u, values_, at, values_, false);
      }
      exact_.substitute(kSmall, values_, false, m + b * n + b, n, ones() + b, minus_beta() + b, at,
                        u + b * values_);
    }
    if (q == nullptr) table_.errors(n, values_, nullptr, beta(), w_.data(), mix, w_.data(), u);
  }

  /// After solve(). `state` becomes that after the chunk.
  void advance_state(int64_t n, A* state) {
    scale_state(state);
    kernels::multiply<O>(keys_, values_, n, turned_.left(k_columns_.data(), keys_, n), n,
                       tokens_.right(scaled(e(), n, values_, u_.data()), n, values_), values_,
                       state, values_, true);
  }

  /// W and U again: kept, but for the last chunk, whose W the walk over the states did not need.
  void find_errors(const Chunk& chunk, const ChunkTiles<A>& tiles, const O* k, const A* state) {
    const int64_t n = chunk.rows();
    if (kept_.empty() || kept_.back().token != chunk.token) {
      solve(n, tiles.k, k, nullptr, state_.right(state, keys_, values_), tiles.v);
      return;
    }
    w_ = std::move(kept_.back().w);
    kept_.pop_back();
    loops_.scale_rows(w_.data(), beta(), n, values_, u_.data());
  }

  /// X and H, and what e_j gets.
  void solve_backward(int64_t n, const O* k, const A* d_o, const A* d_state) {
    A *x = back_->x.data(), *h = back_->h.data();
    kernels::multiply<O>(n, values_, keys_, k, keys_, state_.right(d_state, keys_, values_), values_,
                       x, values_, false);
    scale(e(), n, values_, x);
    if (wants_decay()) loops_.row_dots(x, u_.data(), n, values_, behind());
    Visible::apply(n, values_, p_.data(), tokens_.right(d_o, n, values_), true, x, true);
    std::fill_n(h, n * values_, A{0});
    const A* m = back_->m.data();
    for (int64_t b = n - kSmall; b >= 0; b -= kSmall) {
      const int64_t next = b + kSmall;
      if (next < n) {
        kernels::multiply<O>(kSmall, values_, n - next, m + b * n + next, n, h + next * values_,
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
    const A* h = back_->h.data();
    A *dkk = back_->dkk.data(), *dqk = back_->dqk.data(), *aside = back_->aside.data();
    const O* u = back_->u.left(u_.data(), n, values_);
    Visible::make(n, values_, u, token_columns(h, n), true, dkk);
    Visible::make(n, values_, u, token_columns(d.o, n), true, dqk);
    table_.weights_backward(scores, back_->decay.data(), back_->m.data(), dkk, dqk, dkk, dqk,
                            scratch(), wants_decay() ? sums() : nullptr);

    A* dq = d.q != nullptr ? d.q : back_->dq.data();
    A* dk = d.k != nullptr ? d.k : back_->dk.data();
    const O* s = state_columns(state);
    kernels::multiply<O>(n, keys_, values_, tokens_.left(d.o, n, values_), values_, s, keys_, dq,
                       keys_, false);
    kernels::multiply<O>(n, keys_, values_, tokens_.left(h, n, values_), values_, s, keys_, dk, keys_,
                       false);
    scale(a(), n, keys_, dq);
    scale(a(), n, keys_, dk);
    if (wants_decay()) store_decay(chunk, tiles, dq, dk, state, d_state);

    kernels::pack_left_transposed<A>(dqk, n, n, n, aside, n);
    const O* k = tokens_.right(tiles.k, n, keys_);
    Visible::apply(n, keys_, back_->square.left(aside, n, n), k, false, dq, true);
    kernels::pack_left_transposed<A>(dkk, n, n, n, aside, n);
    table_.add(n * n, dkk, aside);
    kernels::multiply<O>(n, keys_, n, back_->square.left(aside, n, n), n, k, keys_, dk, keys_, true);
    Visible::apply(n, keys_, back_->square.left(dqk, n, n), tokens_.right(tiles.q, n, keys_), true,
                   dk, true);
    kernels::multiply<O>(n, keys_, values_,
                       back_->u.left(scaled(e(), n, values_, u_.data()), n, values_), values_,
                       state_columns(d_state), keys_, dk, keys_, true);
  }

  /// x [n, values] transposed, as a right factor.
  const O* token_columns(const A* x, int64_t n) const {
    kernels::pack_columns<A>(x, n, values_, back_->token_columns.data(), n);
    return back_->columns.right(back_->token_columns.data(), values_, n);
  }

  /// A state transposed, as a right factor [values, keys].
  const O* state_columns(const A* state) const {
    kernels::pack_columns<A>(state, keys_, values_, back_->state_columns.data(), keys_);
    return state_.right(back_->state_columns.data(), values_, keys_);
  }

  /// Gathers what every decay over a token gets; dq and dk hold what comes through a.
  void store_decay(const Chunk& chunk, const ChunkTiles<A>& tiles, const A* dq, const A* dk,
                   const A* state, const A* d_state) const {
    const int64_t n = chunk.rows();
    A past = 0, rest = 0;
    loops_.row_dots(state, d_state, 1, keys_ * values_, &past);
    past *= a()[last_];  // what the whole chunk's decay gets
    loops_.row_dots(dq, tiles.q, n, keys_, up_to());
    loops_.row_dots(dk, tiles.k, n, keys_, scratch());
    for (int64_t t = 0; t < n; ++t) {
      sums()[t] += past;
      past += behind()[t];
    }
    for (int64_t t = n - 1; t >= 0; --t) {
      rest += up_to()[t] + scratch()[t];
      sums()[t] += rest;
    }
    store(gates_.d_log_decay, chunk, sums());
  }

  int64_t keys_, values_, heads_, most_, last_ = 0;
  DeltaGates gates_;
  const kernels::DeltaTable<A, O> table_ = kernels::delta_tiles<A, O>();
  const kernels::TileTable<A, A>& exact_ = kernels::tiles<A, A>();
  const kernels::ChunkLoops<A> loops_ = kernels::chunk_loops<A>();
  Memory rows_, kk_, qk_, k_columns_, w_, u_, mix_, scaled_;
  kernels::Buffer<O> p_;
  Factor k_, q_, turned_, state_, tokens_;
  std::optional<Backward> back_;
  std::vector<Errors> kept_;
};

}  // namespace hopmix::ops
