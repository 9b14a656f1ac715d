// How the state of OuterProducts decays (outer_products.h): by one number a token and key channel.
//
// A_ts = sum_c q_tc k_sc e^(sum of g_rc over s < r <= t) is made by halves. With P_t the product of
// the decays from the start of t's block of h tokens up to t, and R_s of those behind s in its
// block, a pair in neighbouring blocks L and R of h has the decay R_s P_t:
//
//   A[R, L] = (P q)[R] (R k)[L]^T,
//
// a product of matrices, and each pair is in neighbouring blocks at exactly one h = 1, 2, 4, ...
// From h to 2h, P of R gets the factor D of L, and R of L that of R, where D = e^(sum of g over the
// block). So every factor is a decay: nothing is divided, nothing overflows that the definition
// does not, a decay may be 0, and a factor is a product of at most log2(kChunk) + 1 roundings.
//
// The gradient walks the same tree down. Each level hands the gradients of P q and R k to the level
// below, and to log D of both blocks what they multiply; at the leaves log D is g. Nothing is taken
// off anywhere, so the error does not grow with T.
#pragma once

#include <algorithm>

#include "hopmix/kernels/chunked/decay_tree_loops.h"
#include "hopmix/ops/chunked_heads.h"

namespace hopmix::ops {

template <typename T, typename O>
class ChannelDecay {
 public:
  using A = kernels::Accumulator<T>;
  static constexpr bool kUsed = true;

  /// log_decay [B,T,H,DK] and where its gradient goes, if wanted; `differentiable` if that or the
  /// gradients of q or k are.
  ChannelDecay(const ChunkedCall& call, const Tensor& log_decay, const Tensor& gradient,
               bool differentiable)
      : heads_(call.heads),
        width_(call.key_width),
        keys_(call.keys()),
        values_(call.values()),
        log_decay_(read<T>(log_decay)),
        gradient_(gradient.defined() ? write<T>(gradient) : nullptr),
        keep_(differentiable),
        stride_(keep_ ? call.rows() * keys_ : 0),
        g_(call.rows() * keys_),
        q_levels_(call.rows() * keys_ + kLevels * stride_),
        k_levels_(call.rows() * keys_ + kLevels * stride_),
        decays_(call.rows() * keys_ + kLevels * stride_),
        sums_(call.rows() * keys_),
        all_(keys_),
        a_(call.rows() * call.rows()),
        d_a_(keep_ ? call.rows() * call.rows() : 0),
        turned_(keep_ ? call.rows() * call.rows() : 0),
        block_(kSmall * kSmall),
        spare_q_(stride_),
        spare_k_(stride_),
        e_(stride_),
        e2_(stride_),
        level_(keep_ ? call.rows() * kSmall : 0),
        weights_(call.rows() * call.rows(), /*transposes=*/true),
        d_weights_(keep_ ? call.rows() * call.rows() : 0),
        d_weights_transposed_(keep_ ? call.rows() * call.rows() : 0),
        left_(call.rows() * keys_),
        right_(call.rows() * keys_, /*transposes=*/true) {}

  void enter(const Chunk& chunk, const A* q, const A* k) {
    chunk_ = chunk;
    n_ = chunk.rows();
    q_ = q;
    k_ = k;
    top_ = 0;
    load_tile(log_decay_, {heads_, chunk.head, width_}, chunk, A{1}, g_.data());
    if (q == nullptr) {
      tree_.behind(n_, keys_, g_.data(), k, k_levels_.data(), all_.data());
      return;
    }
    climb();
  }

  /// P q and R k of the whole chunk.
  const A* q() const { return q_at(top_); }
  const A* k() const { return k_at(top_); }

  /// A [n, n] as a left factor; 0 where a query does not see the key.
  const O* weights() const { return weights_.left(a_.data(), n_, n_); }
  const O* weights_transposed() const { return weights_.left_transposed(a_.data(), n_, n_); }

  /// Where the gradients of A^T, P q and R k go; null: not wanted.
  A* d_weights() const { return d_a_.data(); }
  A* d_q(const ChunkGradients<A>& d) const { return keep_ && !d.q ? spare_q_.data() : d.q; }
  A* d_k(const ChunkGradients<A>& d) const { return keep_ && !d.k ? spare_k_.data() : d.k; }

  /// From them the gradients of q and k, in place, and that of the log decays.
  void backward(A* d_q, A* d_k, const A* state, const A* d_state) {
    kernels::pack_columns<A>(d_a_.data(), n_, n_, turned_.data(), n_);
    const O* d_a = d_weights_.left(turned_.data(), n_, n_);
    const O* d_a_transposed = d_weights_transposed_.left(d_a_.data(), n_, n_);
    loops_.row_dots(state, d_state, keys_, values_, e_.data());
    for (int64_t c = 0; c < keys_; ++c) e_.data()[c] *= all_.data()[c];
    A *e = e_.data(), *e2 = e2_.data();
    for (int64_t level = top_ - 1; level >= 0; --level) {
      const int64_t h = int64_t{1} << level;
      std::swap(e, e2);
      tree_.part(n_, keys_, h, q_at(level + 1), k_at(level + 1), decays_at(level), e2, d_q, d_k, e);
      apply_level(h, /*to_right=*/true, d_a, right_.right(k_at(level), n_, keys_), d_q);
      apply_level(h, /*to_right=*/false, d_a_transposed, right_.right(q_at(level), n_, keys_), d_k);
    }
    A own[kChunk];
    for (int64_t i = 0; i < n_; ++i) own[i] = d_a_.data()[i * n_ + i];
    tree_.leaves(n_, keys_, q_, k_, q_at(0), decays_at(0), own, d_q, d_k, e);
    if (gradient_ != nullptr) {
      store_tile(static_cast<const A*>(e), {heads_, chunk_.head, width_}, chunk_, A{1}, gradient_);
    }
  }

  /// S = D S.
  void scale_state(A* state) const { loops_.scale_rows(state, all_.data(), keys_, values_, state); }

 private:
  static constexpr int64_t kLevels = 6;  // kChunk = 2^kLevels
  static constexpr int64_t kSmall = kernels::kTileLanes;
  static_assert(kChunk == int64_t{1} << kLevels);

  A* q_at(int64_t level) const { return q_levels_.data() + level * stride_; }
  A* k_at(int64_t level) const { return k_levels_.data() + level * stride_; }
  A* decays_at(int64_t level) const { return decays_.data() + level * stride_; }

  void climb() {
    const int64_t size = n_ * keys_;
    std::fill_n(a_.data(), n_ * n_, A{0});
    std::copy_n(g_.data(), size, sums_.data());
    tree_.powers(g_.data(), size, decays_at(0));
    for (int64_t i = 0; i < n_; ++i) {
      loops_.row_dots(q_ + i * keys_, k_ + i * keys_, 1, keys_, a_.data() + i * n_ + i);
    }
    A *q = q_at(0), *k = k_at(0);
    const A* decays = decays_at(0);
#pragma omp simd
    for (int64_t x = 0; x < size; ++x) q[x] = decays[x] * q_[x];
    std::copy_n(k_, size, k);
    for (int64_t h = 1; h < n_; h *= 2, ++top_) {
      make_level(h);
      if (h > 1) tree_.powers(sums_.data(), (n_ + h - 1) / h * keys_, decays_at(top_));
      tree_.join(n_, keys_, h, q_at(top_), k_at(top_), decays_at(top_), sums_.data(),
                 q_at(top_ + 1), k_at(top_ + 1), sums_.data());
    }
    tree_.powers(sums_.data(), keys_, all_.data());
  }

  // Calls f(first of L, of R, behind R) for the neighbouring blocks of h tokens in [begin, end).
  template <typename F>
  static void for_neighbours(int64_t begin, int64_t end, int64_t h, const F& f) {
    for (int64_t i = begin; i + h < end; i += 2 * h) f(i, i + h, std::min(i + 2 * h, end));
  }

  // A of the pairs in neighbouring blocks of h tokens. Small blocks lie in squares on the diagonal
  // which are made whole, for a product of few rows costs as much.
  void make_level(int64_t h) {
    const O* q = left_.left(q_at(top_), n_, keys_);
    const O* k = right_.right_transposed(k_at(top_), n_, keys_);
    if (h >= kSmall) {
      for_neighbours(0, n_, h, [&](int64_t left, int64_t right, int64_t end) {
        kernels::multiply<O>(end - right, h, keys_, q + right * keys_, keys_,
                           k + kernels::right_index<O>(0, left, n_), n_, a_.data() + right * n_ + left, n_,
                           /*add=*/false);
      });
      return;
    }
    for (int64_t i = 0; i < n_; i += kSmall) {
      kernels::multiply<O>(kSmall, kSmall, keys_, q + i * keys_, keys_, k + kernels::right_index<O>(0, i, n_),
                         n_, block_.data(), kSmall, /*add=*/false);
      for_neighbours(0, kSmall, h, [&](int64_t left, int64_t right, int64_t end) {
        for (int64_t t = right; t < end; ++t) {
          std::copy_n(block_.data() + t * kSmall + left, h, a_.data() + (i + t) * n_ + i + left);
        }
      });
    }
  }

  // out += w x with what w [n, n] has for the pairs in neighbouring blocks of h tokens: rows in R
  // and columns in L, or the reverse. x [n, keys] is a right factor.
  void apply_level(int64_t h, bool to_right, const O* w, const O* x, A* out) {
    if (h >= kSmall) {
      for_neighbours(0, n_, h, [&](int64_t left, int64_t right, int64_t end) {
        const int64_t row = to_right ? right : left, column = to_right ? left : right;
        const int64_t rows = to_right ? end - right : h, columns = to_right ? h : end - right;
        kernels::multiply<O>(rows, keys_, columns, w + row * n_ + column, n_,
                           x + kernels::right_index<O>(column, 0, keys_), keys_, out + row * keys_, keys_,
                           /*add=*/true);
      });
      return;
    }
    for (int64_t i = 0; i < n_; i += kSmall) {
      O* square = level_.data() + i * kSmall;
      std::fill_n(square, kSmall * kSmall, O{});
      for_neighbours(0, kSmall, h, [&](int64_t left, int64_t right, int64_t) {
        const int64_t row = to_right ? right : left, column = to_right ? left : right;
        for (int64_t t = row; t < row + h; ++t) {
          std::copy_n(w + (i + t) * n_ + i + column, h, square + t * kSmall + column);
        }
      });
      kernels::multiply<O>(kSmall, keys_, kSmall, square, kSmall, x + kernels::right_index<O>(i, 0, keys_),
                         keys_, out + i * keys_, keys_, /*add=*/true);
    }
  }

  int64_t heads_, width_, keys_, values_, n_ = 0, top_ = 0;
  const T* log_decay_;
  T* gradient_;
  bool keep_;       // every level, for backward(); else one takes the place of the other
  int64_t stride_;  // from level to level
  Chunk chunk_{};
  const A *q_ = nullptr, *k_ = nullptr;
  kernels::Buffer<A> g_, q_levels_, k_levels_, decays_, sums_, all_, a_, d_a_, turned_, block_,
      spare_q_, spare_k_, e_, e2_;
  kernels::Buffer<O> level_;
  kernels::Operand<O, A> weights_, d_weights_, d_weights_transposed_, left_, right_;
  const kernels::ChunkLoops<A> loops_ = kernels::chunk_loops<A>();
  const kernels::DecayTreeLoops<A> tree_ = kernels::decay_tree_loops<A>();
};

}  // namespace hopmix::ops
