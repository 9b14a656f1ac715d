// How the state of OuterProducts decays (outer_products.h), a head at a time: not at all, or by one
// number a token. Everywhere only differences of the sums of log decays of one chunk are taken to
// the exponent, so nothing overflows that the definition does not, and a decay may be 0.
//
// Gradients of log decays are sums of what they multiply: dg_r is the sum of A o dA over keys < r
// and queries >= r, of (P q) . d(P q) over queries >= r, of (R k) . d(R k) over keys < r, and of
// D o dD. The usual q . dq - k . dk, summed from the end of the sequence, takes small differences
// of large sums and grows its error with T; here nothing is taken off.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include "hopmix/ops/chunked_heads.h"

namespace hopmix::ops {

/// A log decay below this is e^-1000 = 0 in every type: -inf too then has exact differences.
template <typename A>
A finite_decay(A log_decay) {
  return log_decay < A{-1000} ? A{-1000} : log_decay;
}

template <typename T, typename O, typename Products, bool kDecays>
class HeadDecay {
 public:
  using A = kernels::Accumulator<T>;
  static constexpr bool kUsed = kDecays;

  /// log_decay [B,T,H] and where its gradient goes, if wanted; both undefined without decay.
  HeadDecay(const ChunkedCall& call, const Tensor& log_decay, const Tensor& gradient)
      : heads_(call.heads),
        keys_(call.keys()),
        state_size_(call.state_size()),
        log_decay_(kDecays ? read<T>(log_decay) : nullptr),
        gradient_(gradient.defined() ? write<T>(gradient) : nullptr),
        a_(call.rows() * call.rows()),
        d_a_(call.rows() * call.rows()),
        decays_(kDecays ? call.rows() * call.rows() : 0),
        decayed_q_(kDecays ? call.rows() * keys_ : 0),
        decayed_k_(kDecays ? call.rows() * keys_ : 0),
        spare_q_(gradient_ ? call.rows() * keys_ : 0),
        spare_k_(gradient_ ? call.rows() * keys_ : 0),
        weights_(call.rows() * call.rows(), /*transposes=*/true),
        left_(call.rows() * keys_),
        right_(call.rows() * keys_, /*transposes=*/true) {}

  void enter(const Chunk& chunk, const A* q, const A* k) {
    chunk_ = chunk;
    n_ = chunk.rows();
    q_ = q;
    k_ = k;
    if constexpr (kDecays) {
      add_up();
      if (q != nullptr) loops_.scale_rows(q, start_.data(), n_, keys_, decayed_q_.data());
      loops_.scale_rows(k, end_.data(), n_, keys_, decayed_k_.data());
    }
  }

  /// P q and R k.
  const A* q() const { return kDecays ? decayed_q_.data() : q_; }
  const A* k() const { return kDecays ? decayed_k_.data() : k_; }

  /// A [n, n] as a left factor; 0 where a query does not see the key.
  const O* weights() const { return make_weights(q_, k_, /*transposed=*/false); }
  const O* weights_transposed() const { return make_weights(k_, q_, /*transposed=*/true); }

  /// Where the gradients of A^T, P q and R k go, after weights_transposed(); null: not wanted.
  A* d_weights() const { return d_a_.data(); }
  A* d_q(const ChunkGradients<A>& d) const { return gradient_ && !d.q ? spare_q_.data() : d.q; }
  A* d_k(const ChunkGradients<A>& d) const { return gradient_ && !d.k ? spare_k_.data() : d.k; }

  /// From them the gradients of q and k, in place, and that of the log decays.
  void backward(A* d_q, A* d_k, const A* state, const A* d_state) {
    if (gradient_ != nullptr) store_gradient(d_q, d_k, state, d_state);
    loops_.mask(d_a_.data(), kDecays ? decays_.data() : nullptr, n_, true, d_a_.data());
    if (d_k != nullptr) {
      if constexpr (kDecays) loops_.scale_rows(d_k, end_.data(), n_, keys_, d_k);
      Visible::apply(n_, keys_, weights_.left(d_a_.data(), n_, n_), right_.right(q_, n_, keys_),
                     /*transposed=*/true, d_k, /*add=*/true);
    }
    if (d_q != nullptr) {
      if constexpr (kDecays) loops_.scale_rows(d_q, start_.data(), n_, keys_, d_q);
      Visible::apply(n_, keys_, weights_.left_transposed(d_a_.data(), n_, n_),
                     right_.right(k_, n_, keys_), /*transposed=*/false, d_q, /*add=*/true);
    }
  }

  /// S = D S.
  void scale_state(A* state) const {
    if constexpr (kDecays) loops_.scale_rows(state, &all_, 1, state_size_, state);
  }

 private:
  using Visible = VisibleProducts<Products, O, A>;
  using Numbers = std::array<A, kChunk>;  // one a token

  int64_t at(int64_t i) const {
    return kernels::head_offset(chunk_.token + i, heads_, chunk_.head, 1);
  }

  // The log decays up to each token as high + low, and what they make of q, k and the state.
  void add_up() {
    A high = 0, low = 0;
    for (int64_t i = 0; i < n_; ++i) {
      if (i < chunk_.length) {
        const A g = finite_decay(static_cast<A>(log_decay_[at(i)]));
        const A sum = high + g, taken = sum - high;
        low += (high - (sum - taken)) + (g - taken);  // what the sum has lost (Knuth)
        high = sum;
      }
      high_[i] = high;
      low_[i] = low;
      start_[i] = std::exp(high + low);
    }
    for (int64_t i = 0; i < n_; ++i) end_[i] = std::exp((high - high_[i]) + (low - low_[i]));
    all_ = start_[n_ - 1];
  }

  const O* make_weights(const A* rows, const A* columns, bool transposed) const {
    Visible::make(n_, keys_, left_.left(rows, n_, keys_),
                  right_.right_transposed(columns, n_, keys_), transposed, a_.data());
    if constexpr (kDecays) {
      loops_.decays(high_.data(), low_.data(), n_, transposed, decays_.data());
    }
    loops_.mask(a_.data(), kDecays ? decays_.data() : nullptr, n_, transposed, a_.data());
    return weights_.left(a_.data(), n_, n_);
  }

  void store_gradient(const A* d_q, const A* d_k, const A* state, const A* d_state) {
    Numbers read_later, read_before, scratch, dg;
    A carried;
    loops_.row_dots(decayed_q_.data(), d_q, n_, keys_, read_later.data());
    loops_.row_dots(decayed_k_.data(), d_k, n_, keys_, read_before.data());
    loops_.row_dots(state, d_state, 1, state_size_, &carried);
    loops_.decay_gradient(a_.data(), d_a_.data(), n_, scratch.data(), dg.data());
    A sum = all_ * carried;
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
  A all_ = 1;
  Numbers high_, low_, start_, end_;
  kernels::Buffer<A> a_, d_a_, decays_, decayed_q_, decayed_k_, spare_q_, spare_k_;
  Operand<O, A> weights_, left_, right_;
  const kernels::ChunkLoops<A>& loops_ = kernels::chunk_loops<A>();
};

}  // namespace hopmix::ops
