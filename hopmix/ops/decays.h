// How the state of OuterProducts decays: not at all.
#pragma once

#include "hopmix/ops/chunked_heads.h"

namespace hopmix::ops {

/// Attention inside a chunk without decay: A = q k^T below the diagonal and on it.
template <typename T, typename O, typename Products>
class NoDecay {
 public:
  using A = kernels::Accumulator<T>;

  explicit NoDecay(const ChunkedCall& call)
      : keys_(call.keys()),
        scores_(call.rows() * call.rows()),
        p_(call.rows() * call.rows()),
        p_transposed_(call.rows() * call.rows()),
        left_(call.rows() * keys_),
        right_(call.rows() * keys_, /*transposes=*/true),
        rows_(call.rows() * keys_) {}

  void enter(const Chunk& chunk, const A* q, const A* k) {
    n_ = chunk.rows();
    q_ = q;
    k_ = k;
  }

  /// P q and R k of outer_products.h.
  const A* q() const { return q_; }
  const A* k() const { return k_; }

  /// A [n, n] as a left factor.
  const O* weights() const {
    Products::multiply(n_, n_, keys_, left_.left(q_, n_, keys_), keys_,
                       right_.right_transposed(k_, n_, keys_, n_), n_, scores_.data(), n_, false);
    mask(scores_.data(), /*transposed=*/false, p_.data());
    return p_.data();
  }

  const O* weights_transposed() const {
    Products::multiply(n_, n_, keys_, left_.left(k_, n_, keys_), keys_,
                       right_.right_transposed(q_, n_, keys_, n_), n_, scores_.data(), n_, false);
    mask(scores_.data(), /*transposed=*/true, p_.data());
    return p_.data();
  }

  /// Where the gradients of A^T, P q and R k go before backward(); null: not wanted.
  A* d_weights() const { return scores_.data(); }
  A* d_q(const ChunkGradients<A>& d) const { return d.q; }
  A* d_k(const ChunkGradients<A>& d) const { return d.k; }

  /// From them the gradients of q and k, in place.
  void backward(A* d_q, A* d_k, const A*, const A*) const {
    mask(scores_.data(), /*transposed=*/true, p_transposed_.data());
    if (d_k != nullptr) {
      Products::multiply(n_, keys_, n_, p_transposed_.data(), n_, rows_.right(q_, n_, keys_), keys_,
                         d_k, keys_, true);
    }
    if (d_q != nullptr) {
      pack_left_transposed<O>(p_transposed_.data(), n_, n_, n_, p_.data(), n_);
      Products::multiply(n_, keys_, n_, p_.data(), n_, rows_.right(k_, n_, keys_), keys_, d_q,
                         keys_, true);
    }
  }

  void scale_state(A*) const {}

 private:
  // p = scores where query >= key, else 0.
  void mask(const A* scores, bool transposed, O* p) const {
    for (int64_t i = 0; i < n_; ++i, scores += n_, p += n_) {
      const int64_t begin = transposed ? i : 0, end = transposed ? n_ : i + 1;
      std::fill(p, p + begin, O{});
#pragma omp simd
      for (int64_t j = begin; j < end; ++j) p[j] = convert<O>(scores[j]);
      std::fill(p + end, p + n_, O{});
    }
  }

  int64_t keys_, n_ = 0;
  const A *q_ = nullptr, *k_ = nullptr;
  kernels::Buffer<A> scores_;
  kernels::Buffer<O> p_, p_transposed_;
  Operand<O, A> left_, right_, rows_;
};

}  // namespace hopmix::ops
