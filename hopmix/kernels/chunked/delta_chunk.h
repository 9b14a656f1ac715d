// The common part of the delta rules in README.md: M, P and beta, for right sides R of any width,
//
//   W = R - M U,  U = diag(beta) W,   and backward   X += M^T H,  H = -diag(beta) X.
//
// delta_rule.cc uses R = V - early_k S, delta_transition.h R = 1. The parameter Decay defines how
// keys and queries decay, and with them M and P; delta_head_decay.h lists its interface.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "hopmix/kernels/chunked/chunked_heads.h"
#include "hopmix/kernels/chunked/delta_tile.h"

namespace hopmix::kernels {

template <typename T, typename O, typename Decay>
class DeltaChunk {
 public:
  using A = Accumulator<T>;

  /// Right-hand sides are up to `width` wide. beta [B,T,H] and its gradient (null if not wanted).
  DeltaChunk(const ChunkedSizes& sizes, int64_t width, Decay decay, const T* beta, T* gradient)
      : heads_(sizes.heads),
        most_(sizes.rows()),
        beta_from_(beta),
        gradient_(gradient),
        decay_(std::move(decay)),
        numbers_(kNumbers * most_),
        mix_(most_ * width),
        u_left_(most_ * width) {
    std::fill_n(ones(), most_, A{1});
  }

  void enter(const Chunk& chunk, const A* q, const A* k) {
    chunk_ = chunk;
    n_ = chunk.rows();
    for (int64_t i = 0; i < n_; ++i) {
      beta()[i] = i < chunk.length ? static_cast<A>(beta_from_[at(i)]) : A{0};
      minus_beta()[i] = -beta()[i];
    }
    decay_.enter(chunk, q, k);
  }

  Decay& decay() { return decay_; }
  const Decay& decay() const { return decay_; }
  A* beta() const { return numbers_.data(); }
  /// Scratch memory [n, width] for solve().
  A* mix() const { return mix_.data(); }
  bool wants_gradient() const { return gradient_ != nullptr || decay_.wants_gradient(); }

  /// u = diag(beta) R becomes U; w = R becomes W, unless null. Call after make_scores().
  void solve(int64_t width, A* u, A* w) const {
    const A* m = decay_.m();
    for (int64_t b = 0; b < n_; b += kSmall) {
      A* at = mix() + b * width;  // M U
      if (b == 0) {
        std::fill_n(at, kSmall * width, A{0});
      } else {
        multiply<A>(kSmall, width, b, m + b * n_, n_, u, width, at, width, false);
      }
      exact_.substitute(kSmall, width, false, m + b * n_ + b, n_, ones() + b, minus_beta() + b, at,
                        u + b * width);
    }
    if (w != nullptr) table_.errors(n_, width, beta(), w, mix(), w, u);
  }

  /// x, the gradient of U without the contribution of M, becomes the full gradient; h becomes H.
  /// Call after make_transposed().
  void solve_backward(int64_t width, A* x, A* h) const {
    const A* m = decay_.m_transposed();
    std::fill_n(h, n_ * width, A{0});
    for (int64_t b = n_ - kSmall; b >= 0; b -= kSmall) {
      const int64_t next = b + kSmall;
      if (next < n_) {
        multiply<A>(kSmall, width, n_ - next, m + b * n_ + next, n_, h + next * width, width,
                    x + b * width, width, true);
      }
      exact_.substitute_backward(kSmall, width, false, m + b * n_ + b, n_, minus_beta() + b,
                                 x + b * width, h + b * width);
    }
  }

  /// dbeta from X and W.
  void store_gradient(int64_t width, const A* x, const A* w) const {
    if (gradient_ == nullptr) return;
    A* const sums = numbers_.data() + 3 * most_;
    loops_.row_dots(x, w, n_, width, sums);
    for (int64_t i = 0; i < chunk_.length; ++i) gradient_[at(i)] = static_cast<T>(sums[i]);
  }

  /// dM and dP from U and, transposed, H and dO as right factors.
  void scores_backward(int64_t width, const A* u, const O* h, const O* d_o) const {
    const O* left = u_left_.left(u, n_, width);
    VisibleProducts<O>::make(n_, width, left, h, true, decay_.d_m());
    VisibleProducts<O>::make(n_, width, left, d_o, true, decay_.d_p());
  }

 private:
  static constexpr int64_t kSmall = kTileLanes;
  static constexpr int64_t kNumbers = 4;

  A* minus_beta() const { return numbers_.data() + most_; }
  A* ones() const { return numbers_.data() + 2 * most_; }
  int64_t at(int64_t i) const { return head_offset(chunk_.token + i, heads_, chunk_.head, 1); }

  int64_t heads_, most_, n_ = 0;
  const T* beta_from_;
  T* gradient_;
  Chunk chunk_{};
  Decay decay_;
  Buffer<A> numbers_, mix_;
  Operand<O, A> u_left_;
  const DeltaTable<A, O> table_ = delta_tiles<A, O>();
  const TileTable<A, A> exact_ = tiles<A, A>();
  const ChunkLoops<A> loops_ = chunk_loops<A>();
};

}  // namespace hopmix::kernels
