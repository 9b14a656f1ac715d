// The gradient of a weight, dW [outputs, inputs] = g^T x over many rows: a sum over rows,
// accumulated chunk by chunk from the first to the last. Each task owns a tile of dW.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/maps/panels.h"

namespace hopmix::kernels {

/// O as in panels.h. T is what dW is stored as.
template <typename T, typename O>
class WeightGradient {
 public:
  using A = Accumulator<T>;

  /// The number of rows added at a time: a block of dW reads 200 KB of them transposed, which fits
  /// the L2 cache.
  static constexpr int64_t kChunkRows = 512;

  /// dweight [outputs, inputs] and dbias [outputs], each unless null.
  WeightGradient(int64_t outputs, int64_t inputs, T* dweight, T* dbias)
      : outputs_(outputs),
        inputs_(inputs),
        dweight_(dweight),
        dbias_(dbias),
        blocks_((outputs + kRowBlock - 1) / kRowBlock),
        sums_(dweight && !std::is_same_v<T, A> ? outputs * inputs : 0),
        bias_(dbias ? outputs : 0),
        left_(dweight ? blocks_ * kRowBlock * kStride : 0),
        right_(dweight ? kChunkRows : 0, inputs) {
    if (dbias) std::fill_n(bias_.data(), outputs, A{0});
  }

  bool wanted() const { return dweight_ != nullptr || dbias_ != nullptr; }

  /// Adds up to kChunkRows rows: g [rows, outputs], x [rows, inputs].
  template <typename G, typename X>
  void add(const MatrixView<G>& g, const MatrixView<X>& x) {
    if (!wanted()) return;
    const int64_t rows = g.rows, work = rows * (outputs_ + inputs_);
    const int64_t panels = dweight_ ? right_.count() : 0;
    const int64_t groups = dweight_ ? (rows + kGroup - 1) / kGroup : 0;
    right_.set_rows(rows);
    parallel_tasks(groups + (dbias_ ? blocks_ : 0), work, [&](int64_t task) {
      if (task >= groups) {
        add_to_bias(g, task - groups);
      } else {
        const int64_t first = task * kGroup, n = std::min(kGroup, rows - first);
        right_.pack_rows(x, first, n);
        pack_left_rows(g, first, n);
      }
    });
    if (dweight_ != nullptr) {
      parallel_tasks(blocks_ * panels, work, [&](int64_t task) {
        const int64_t first = task / panels * kRowBlock, panel = task % panels;
        right_.multiply_by(panel, std::min(kRowBlock, outputs_ - first),
                           left_.data() + first * kStride, kStride,
                           sums() + first * inputs_ + right_.first(panel), inputs_, /*add=*/begun_);
        release_gemm();
      });
    }
    begun_ = true;
  }

  /// Call after all rows are added.
  void finish() const {
    if (dweight_ != nullptr) {
      if (!begun_) {
        std::fill_n(dweight_, outputs_ * inputs_, T{});
      } else if constexpr (!std::is_same_v<T, A>) {
        for (int64_t i = 0; i < outputs_ * inputs_; ++i) dweight_[i] = convert<T>(sums_[i]);
      }
    }
    for (int64_t n = 0; dbias_ != nullptr && n < outputs_; ++n) dbias_[n] = convert<T>(bias_[n]);
  }

 private:
  // Stride of the transposed rows: not a power of two, which would make them compete for the same
  // cache lines.
  static constexpr int64_t kStride = kChunkRows + kPad;
  static constexpr int64_t kGroup = 64;  // rows that a task packs

  A* sums() const {
    if constexpr (std::is_same_v<T, A>) {
      return dweight_;
    } else {
      return sums_.data();
    }
  }

  template <typename G>
  void add_to_bias(const MatrixView<G>& g, int64_t block) const {
    const int64_t first = block * kRowBlock, n = std::min(kRowBlock, outputs_ - first);
    A* sum = bias_.data() + first;
    for (int64_t i = 0; i < g.rows; ++i) {
      const G* row = g.data + i * g.stride + first;
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) sum[c] += convert<A>(row[c]);
    }
  }

  // Rows [first, first + n) of g, transposed as columns of a left factor.
  template <typename G>
  void pack_left_rows(const MatrixView<G>& g, int64_t first, int64_t n) const {
    O* const to = left_.data() + first;
    if constexpr (std::is_same_v<O, G> && std::is_same_v<O, float>) {
      if (outputs_ % 4 == 0 && n % 4 == 0) {
        transpose_words(g.data + first * g.stride, n, outputs_, g.stride, to, kStride);
        return;
      }
    }
    const int64_t rows = padded(n), wide = padded(outputs_);
    const Buffer<O> part(rows * wide);
    pack_left<O>(g, first, rows, wide, part.data());
    pack_left_transposed<O>(part.data(), rows, wide, wide, to, kStride);
  }

  int64_t outputs_, inputs_;
  T *dweight_, *dbias_;
  int64_t blocks_;
  bool begun_ = false;
  Buffer<A> sums_, bias_;
  Buffer<O> left_;
  Panels<O> right_;
};

}  // namespace hopmix::kernels
