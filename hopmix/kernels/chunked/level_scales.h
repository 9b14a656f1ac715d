// The factors of log-linear attention, one per token, head and level, chunk by chunk. Chunks are
// aligned, so the levels of two tokens of a chunk are those of their positions in it, and all
// tokens of the chunk read earlier buckets at the same levels.
#pragma once

#include <algorithm>

#include "hopmix/kernels/chunked/chunked_heads.h"
#include "hopmix/kernels/chunked/fenwick.h"

namespace hopmix::kernels {

template <typename T>
class LevelScales {
 public:
  using A = Accumulator<T>;
  /// Levels within a chunk. The bucket of bit b of the chunk's index is at level kInside + b.
  static constexpr int64_t kInside = fenwick_levels(kChunk);

  /// scales [B,T,H,levels] and their gradient (null if not wanted).
  LevelScales(const ChunkedSizes& sizes, int64_t levels, const T* scales, T* gradient)
      : heads_(sizes.heads),
        given_(levels),
        used_(std::max(kInside, fenwick_levels(sizes.longest))),
        most_(sizes.rows()),
        from_(scales),
        to_(gradient),
        scales_(used_ * most_),
        gradient_(to_ ? used_ * most_ : 0),
        tile_(most_ * most_) {}

  void enter(const Chunk& chunk) {
    chunk_ = chunk;
    n_ = chunk.rows();
    const int64_t levels = std::min(given_, used_);
    std::fill_n(scales_.data(), used_ * most_, A{0});
    for (int64_t i = 0; i < chunk.length; ++i) {
      for (int64_t l = 0; l < levels; ++l) level(l)[i] = static_cast<A>(from_[at(i) + l]);
    }
    if (to_ != nullptr) std::fill_n(gradient_.data(), used_ * most_, A{0});
  }

  bool wants_gradient() const { return to_ != nullptr; }

  /// The factors of one level [n], and their gradients.
  A* level(int64_t l) const { return scales_.data() + l * most_; }
  A* d_level(int64_t l) const { return gradient_.data() + l * most_; }

  /// The factors of the pairs of the chunk [n, n], queries as rows, or as columns if `transposed`.
  /// Writes only visible entries.
  const A* tile(bool transposed) const {
    for (int64_t r = 0; r < n_; ++r) {
      A* row = tile_.data() + r * n_;
      row[r] = level(0)[r];
      if (transposed) {
        for_readers(r, n_, [&](int64_t l, int64_t begin, int64_t end) {
          std::copy(level(l) + begin, level(l) + end, row + begin);
        });
      } else {
        int64_t end = r;
        for_buckets(r, [&](int64_t bit) {
          const int64_t begin = end - (int64_t{1} << bit);
          std::fill(row + begin, row + end, level(bit + 1)[r]);
          end = begin;
        });
      }
    }
    return tile_.data();
  }

  /// Adds the gradients of the factors in the chunk, where loss = sum of factor * a * d_a; both [n,
  /// n], transposed.
  void add_gradient(const A* a, const A* d_a) const {
    for (int64_t j = 0; j < n_; ++j) {
      const A *x = a + j * n_, *y = d_a + j * n_;
      d_level(0)[j] += x[j] * y[j];
      for_readers(j, n_, [&](int64_t l, int64_t begin, int64_t end) {
        A* to = d_level(l);
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) to[i] += x[i] * y[i];
      });
    }
  }

  /// Stores the chunk's gradients; levels that it does not read get 0.
  void store_gradient() const {
    for (int64_t i = 0; i < chunk_.length; ++i) {
      for (int64_t l = 0; l < given_; ++l) {
        to_[at(i) + l] = l < used_ ? static_cast<T>(d_level(l)[i]) : T{};
      }
    }
  }

 private:
  int64_t at(int64_t i) const { return head_offset(chunk_.token + i, heads_, chunk_.head, given_); }

  int64_t heads_, given_, used_, most_, n_ = 0;
  const T* from_;
  T* to_;
  Chunk chunk_{};
  Buffer<A> scales_, gradient_, tile_;
};

}  // namespace hopmix::kernels
