// Decay of the state of the delta rule (delta_chunk.h): none, or one number per token. The
// interface that DeltaChunk requires of its Decay:
//
//   enter(chunk, q, k)     starts the chunk; early_q() = diag(a) Q, early_k() = diag(a) K,
//                          late_k() = diag(e) K with the decays a up to each token and e after it.
//                          q may be null
//   make_scores()          m() and, with q, p(): M_ij = D_ij k_i . k_j (j < i), P_ij = D_ij q_i .
//                          k_j (j <= i) with the decay D_ij between two tokens; 0 elsewhere
//   make_transposed()      the same transposed: rows are keys
//   backward(...)          from the gradients of all these, those of q, k and the log decays
//   scale_state(S)         multiplies S by the decay of the whole chunk
#pragma once

#include <algorithm>
#include <optional>

#include "hopmix/kernels/chunked/delta_tile.h"
#include "hopmix/kernels/chunked/head_decay.h"

namespace hopmix::kernels {

template <typename T, typename O>
class DeltaHeadDecay {
 public:
  using A = Accumulator<T>;

  /// log_decay [B,T,H], or null for none, and its gradient (null if not wanted).
  DeltaHeadDecay(const ChunkedSizes& sizes, const T* log_decay, T* gradient)
      : heads_(sizes.heads),
        keys_(sizes.keys()),
        state_size_(sizes.state_size()),
        most_(sizes.rows()),
        log_decay_(log_decay),
        gradient_(gradient),
        early_q_(decays() ? most_ * keys_ : 0),
        early_k_(decays() ? most_ * keys_ : 0),
        late_k_(decays() ? most_ * keys_ : 0),
        kk_(most_ * most_),
        qk_(most_ * most_),
        p_(most_ * most_),
        left_(most_ * std::max(keys_, most_), /*transposes=*/true),
        right_(most_ * keys_, /*transposes=*/true) {}

  void enter(const Chunk& chunk, const A* q, const A* k) {
    chunk_ = chunk;
    n_ = chunk.rows();
    q_ = q;
    k_ = k;
    if (!decays()) return;
    sums_.add_up(chunk.length, n_, [&](int64_t i) { return static_cast<A>(log_decay_[at(i)]); });
    loops_.scale_rows(k, sums_.start.data(), n_, keys_, early_k_.data());
    loops_.scale_rows(k, sums_.end.data(), n_, keys_, late_k_.data());
    if (q != nullptr) loops_.scale_rows(q, sums_.start.data(), n_, keys_, early_q_.data());
  }

  const A* early_q() const { return decays() ? early_q_.data() : q_; }
  const A* early_k() const { return decays() ? early_k_.data() : k_; }
  const A* late_k() const { return decays() ? late_k_.data() : k_; }

  void make_scores() {
    make_products(/*transposed=*/false);
    table_.weights(products(), kk_.data(), q_ != nullptr ? p_.data() : nullptr);
  }
  const A* m() const { return kk_.data(); }
  const O* p() const { return p_.data(); }

  void make_transposed() {
    if (!back_) back_.emplace(most_);
    make_products(/*transposed=*/true);
    table_.weights_transposed(products(), back_->decay.data(), back_->m.data(), p_.data());
  }
  const A* m_transposed() const { return back_->m.data(); }
  const O* p_transposed() const { return p_.data(); }

  /// The decay of the chunk, and S times it.
  A all() const { return sums_.all; }
  void scale_state(A* state) const {
    if (decays()) loops_.scale_rows(state, &sums_.all, 1, state_size_, state);
  }

  bool wants_gradient() const { return gradient_ != nullptr; }

  /// The gradients of M^T and P^T are stored here, after make_transposed().
  A* d_m() const { return back_->d_m.data(); }
  A* d_p() const { return back_->d_p.data(); }

  /// The gradient of the chunk's decay: from the state before it and the gradient of the state
  /// after it, or given.
  void carry(const A* state, const A* d_state) {
    if (wants_gradient()) loops_.row_dots(state, d_state, 1, state_size_, &carried_);
  }
  void carry(A gradient) { carried_ = gradient; }

  /// From d_m, d_p and the gradients of early_q, early_k and late_k, computes those of q and k, in
  /// the first two arguments, and of the log decays.
  void backward(A* d_q, A* d_k, A* d_late) {
    Backward& b = *back_;
    if (decays()) {
      loops_.scale_rows(d_q, sums_.start.data(), n_, keys_, d_q);
      loops_.scale_rows(d_k, sums_.start.data(), n_, keys_, d_k);
      loops_.scale_rows(d_late, sums_.end.data(), n_, keys_, d_late);
    }
    A *const d_kk = d_m(), *const d_qk = d_p(), *const aside = b.aside.data();
    Numbers dg, scratch;
    table_.weights_backward(products(), b.decay.data(), b.m.data(), d_kk, d_qk, d_kk, d_qk,
                            scratch.data(), wants_gradient() ? dg.data() : nullptr);
    if (wants_gradient()) store_gradient(d_q, d_k, d_late, dg);
    table_.add(n_ * keys_, d_late, d_k);
    const O* k = right_.right(k_, n_, keys_);
    Visible::apply(n_, keys_, left_.left_transposed(d_qk, n_, n_), k, false, d_q, true);
    pack_left_transposed<A>(d_kk, n_, n_, n_, aside, n_);
    table_.add(n_ * n_, d_kk, aside);
    multiply<O>(n_, keys_, n_, left_.left(aside, n_, n_), n_, k, keys_, d_k, keys_, true);
    Visible::apply(n_, keys_, left_.left(d_qk, n_, n_), right_.right(q_, n_, keys_), true, d_k,
                   true);
  }

 private:
  using Visible = VisibleProducts<O>;
  using Memory = Buffer<A>;
  using Numbers = std::array<A, kChunk>;  // one a token

  struct Backward {
    explicit Backward(int64_t rows)
        : decay(rows * rows),
          m(rows * rows),
          d_m(rows * rows),
          d_p(rows * rows),
          aside(rows * rows) {}
    Memory decay, m, d_m, d_p, aside;
  };

  bool decays() const { return log_decay_ != nullptr; }
  int64_t at(int64_t i) const { return head_offset(chunk_.token + i, heads_, chunk_.head, 1); }
  DeltaScores<A> products() const {
    return {n_, kk_.data(), qk_.data(), decays() ? sums_.high.data() : nullptr,
            decays() ? sums_.low.data() : nullptr};
  }

  /// k . k and, with q, q . k for the tokens that a token sees.
  void make_products(bool transposed) const {
    if (transposed) {
      const O* k = left_.left(k_, n_, keys_);
      Visible::make(n_, keys_, k, right_.right_transposed(k_, n_, keys_), true, kk_.data());
      Visible::make(n_, keys_, k, right_.right_transposed(q_, n_, keys_), true, qk_.data());
      return;
    }
    const O* columns = right_.right_transposed(k_, n_, keys_);
    Visible::make(n_, keys_, left_.left(k_, n_, keys_), columns, false, kk_.data());
    if (q_ == nullptr) return;
    Visible::make(n_, keys_, left_.left(q_, n_, keys_), columns, false, qk_.data());
  }

  /// Adds the remaining contributions to `dg`, the gradient of D; d_q, d_k and d_late are already
  /// those of q and k.
  void store_gradient(const A* d_q, const A* d_k, const A* d_late, Numbers& dg) const {
    Numbers up_to, up_to_k, behind;
    loops_.row_dots(d_q, q_, n_, keys_, up_to.data());
    loops_.row_dots(d_k, k_, n_, keys_, up_to_k.data());
    loops_.row_dots(d_late, k_, n_, keys_, behind.data());
    A past = sums_.all * carried_, rest = 0;
    for (int64_t t = 0; t < n_; ++t) {
      dg[t] += past;
      past += behind[t];
    }
    for (int64_t t = n_ - 1; t >= 0; --t) {
      rest += up_to[t] + up_to_k[t];
      dg[t] += rest;
    }
    for (int64_t i = 0; i < chunk_.length; ++i) gradient_[at(i)] = static_cast<T>(dg[i]);
  }

  int64_t heads_, keys_, state_size_, most_, n_ = 0;
  const T* log_decay_;
  T* gradient_;
  Chunk chunk_{};
  const A *q_ = nullptr, *k_ = nullptr;
  A carried_ = 0;
  DecaySums<A> sums_;
  Memory early_q_, early_k_, late_k_, kk_, qk_;
  Buffer<O> p_;
  Operand<O, A> left_, right_;
  std::optional<Backward> back_;
  const DeltaTable<A, O> table_ = delta_tiles<A, O>();
  const ChunkLoops<A> loops_ = chunk_loops<A>();
};

}  // namespace hopmix::kernels
