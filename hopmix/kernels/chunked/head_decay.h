// Decay of the state of OuterProducts (outer_products.h) per head: none, or one number per token.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include "hopmix/kernels/chunked/chunked_heads.h"

namespace hopmix::kernels {

/// A log decay below this gives e^-1000 = 0 in every type. Clamping keeps differences exact even
/// for -inf.
template <typename A>
A finite_decay(A log_decay) {
  return log_decay < A{-1000} ? A{-1000} : log_decay;
}

/// The cumulative log decays of a chunk, and the factors of its tokens.
template <typename A>
struct DecaySums {
  std::array<A, kChunk> high, low;   // their sum up to each token, in two parts
  std::array<A, kChunk> start, end;  // the decay up to each token, and behind it
  A all = 1;                         // that of the whole chunk

  /// `log_decay(i)` for i < length; the rows up to n are padding.
  template <typename F>
  void add_up(int64_t length, int64_t n, const F& log_decay) {
    A sum = 0, lost = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (i < length) {
        const A g = finite_decay(log_decay(i));
        const A next = sum + g, taken = next - sum;
        lost += (sum - (next - taken)) + (g - taken);  // what the sum has lost (Knuth)
        sum = next;
      }
      high[i] = sum;
      low[i] = lost;
      start[i] = std::exp(sum + lost);
    }
    for (int64_t i = 0; i < n; ++i) end[i] = std::exp((sum - high[i]) + (lost - low[i]));
    all = start[n - 1];
  }
};

template <typename T, typename O, bool kDecays>
class HeadDecay {
 public:
  using A = Accumulator<T>;
  static constexpr bool kUsed = kDecays;

  /// log_decay [B,T,H] and its gradient (null if not wanted); both null without decay.
  HeadDecay(const ChunkedSizes& sizes, const T* log_decay, T* gradient)
      : heads_(sizes.heads),
        keys_(sizes.keys()),
        state_size_(sizes.state_size()),
        log_decay_(log_decay),
        gradient_(gradient),
        a_(sizes.rows() * sizes.rows()),
        d_a_(sizes.rows() * sizes.rows()),
        decays_(kDecays ? sizes.rows() * sizes.rows() : 0),
        decayed_q_(kDecays ? sizes.rows() * keys_ : 0),
        decayed_k_(kDecays ? sizes.rows() * keys_ : 0),
        spare_q_(gradient_ ? sizes.rows() * keys_ : 0),
        spare_k_(gradient_ ? sizes.rows() * keys_ : 0),
        weights_(sizes.rows() * sizes.rows(), /*transposes=*/true),
        left_(sizes.rows() * keys_),
        right_(sizes.rows() * keys_, /*transposes=*/true) {}

  void enter(const Chunk& chunk, const A* q, const A* k) {
    chunk_ = chunk;
    n_ = chunk.rows();
    q_ = q;
    k_ = k;
    if constexpr (kDecays) {
      sums_.add_up(chunk.length, n_, [&](int64_t i) { return static_cast<A>(log_decay_[at(i)]); });
      if (q != nullptr) loops_.scale_rows(q, sums_.start.data(), n_, keys_, decayed_q_.data());
      loops_.scale_rows(k, sums_.end.data(), n_, keys_, decayed_k_.data());
    }
  }

  /// P q and R k.
  const A* q() const { return kDecays ? decayed_q_.data() : q_; }
  const A* k() const { return kDecays ? decayed_k_.data() : k_; }

  /// A [n, n], 0 where a query does not see the key; and A as a left factor.
  const A* scores(bool transposed) const {
    Visible::make(n_, keys_, left_.left(transposed ? k_ : q_, n_, keys_),
                  right_.right_transposed(transposed ? q_ : k_, n_, keys_), transposed, a_.data());
    if constexpr (kDecays) {
      loops_.decays(sums_.high.data(), sums_.low.data(), n_, transposed, decays_.data());
    }
    loops_.mask(a_.data(), kDecays ? decays_.data() : nullptr, n_, transposed, a_.data());
    return a_.data();
  }
  const O* weights() const { return weights_.left(scores(/*transposed=*/false), n_, n_); }
  const O* weights_transposed() const { return weights_.left(scores(/*transposed=*/true), n_, n_); }

  /// The gradients of A^T, P q and R k are stored here, after scores(true); null if not wanted.
  A* d_weights() const { return d_a_.data(); }
  A* d_q(const ChunkGradients<A>& d) const { return gradient_ && !d.q ? spare_q_.data() : d.q; }
  A* d_k(const ChunkGradients<A>& d) const { return gradient_ && !d.k ? spare_k_.data() : d.k; }

  /// From these, computes the gradients of q and k, in place, and of the log decays.
  void backward(A* d_q, A* d_k, const A* state, const A* d_state) {
    A carried = 0;
    if (gradient_ != nullptr) loops_.row_dots(state, d_state, 1, state_size_, &carried);
    backward(d_q, d_k, carried);
  }

  /// The same, given the gradient of D: S . dS'.
  void backward(A* d_q, A* d_k, A carried) {
    if (gradient_ != nullptr) store_gradient(d_q, d_k, carried);
    loops_.mask(d_a_.data(), kDecays ? decays_.data() : nullptr, n_, true, d_a_.data());
    if (d_k != nullptr) {
      if constexpr (kDecays) loops_.scale_rows(d_k, sums_.end.data(), n_, keys_, d_k);
      Visible::apply(n_, keys_, weights_.left(d_a_.data(), n_, n_), right_.right(q_, n_, keys_),
                     /*transposed=*/true, d_k, /*add=*/true);
    }
    if (d_q != nullptr) {
      if constexpr (kDecays) loops_.scale_rows(d_q, sums_.start.data(), n_, keys_, d_q);
      Visible::apply(n_, keys_, weights_.left_transposed(d_a_.data(), n_, n_),
                     right_.right(k_, n_, keys_), /*transposed=*/false, d_q, /*add=*/true);
    }
  }

  /// S = D S.
  void scale_state(A* state) const {
    if constexpr (kDecays) loops_.scale_rows(state, &sums_.all, 1, state_size_, state);
  }

 private:
  using Visible = VisibleProducts<O>;
  using Numbers = std::array<A, kChunk>;  // one a token

  int64_t at(int64_t i) const { return head_offset(chunk_.token + i, heads_, chunk_.head, 1); }

  void store_gradient(const A* d_q, const A* d_k, A carried) {
    Numbers read_later, read_before, scratch, dg;
    loops_.row_dots(decayed_q_.data(), d_q, n_, keys_, read_later.data());
    loops_.row_dots(decayed_k_.data(), d_k, n_, keys_, read_before.data());
    loops_.decay_gradient(a_.data(), d_a_.data(), n_, scratch.data(), dg.data());
    A sum = sums_.all * carried;
    for (int64_t i = 0; i < n_; ++i) {
      dg[i] += sum;
      sum += read_before[i];
    }
    sum = 0;
    for (int64_t i = n_ - 1; i >= 0; --i) {
      sum += read_later[i];
      dg[i] += sum;
    }
    for (int64_t i = 0; i < chunk_.length; ++i) gradient_[at(i)] = static_cast<T>(dg[i]);
  }

  int64_t heads_, keys_, state_size_, n_ = 0;
  const T* log_decay_;
  T* gradient_;
  Chunk chunk_{};
  const A *q_ = nullptr, *k_ = nullptr;
  DecaySums<A> sums_;
  Buffer<A> a_, d_a_, decays_, decayed_q_, decayed_k_, spare_q_, spare_k_;
  Operand<O, A> weights_, left_, right_;
  const ChunkLoops<A> loops_ = chunk_loops<A>();
};

}  // namespace hopmix::kernels
