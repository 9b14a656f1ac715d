// The gradient of a weight, dW [outputs, inputs] = g^T x over many rows: a sum over rows, taken a
// chunk of them at a time, from the first to the last. A task owns a tile of dW.
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

  /// Rows that are added at a time: 64 columns of them take a quarter of an L2 cache.
  static constexpr int64_t kChunkRows = 512;

  /// dweight [outputs, inputs] and dbias [outputs], each unless null.
  WeightGradient(int64_t outputs, int64_t inputs, T* dweight, T* dbias)
      : outputs_(outputs),
        inputs_(inputs),
        dweight_(dweight),
        dbias_(dbias),
        blocks_((outputs + kPanel - 1) / kPanel),
        sums_(dweight && !std::is_same_v<T, A> ? outputs * inputs : 0),
        bias_(dbias ? outputs : 0),
        left_(dweight ? blocks_ * kPanel * kChunkRows : 0),
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
    right_.set_rows(rows);
    parallel_tasks(blocks_ + panels, work, [&](int64_t task) {
      if (task >= blocks_) {
        right_.pack(x, task - blocks_);
      } else {
        enter_block(g, task * kPanel, std::min(kPanel, outputs_ - task * kPanel));
      }
    });
    if (dweight_ != nullptr) {
      parallel_tasks(blocks_ * panels, work, [&](int64_t task) {
        const int64_t first = task / panels * kPanel, panel = task % panels;
        right_.multiply_by(panel, std::min(kPanel, outputs_ - first),
                           left_.data() + first * kChunkRows, kChunkRows,
                           sums() + first * inputs_ + panel * kPanel, inputs_, /*add=*/begun_);
        release_gemm();
      });
    }
    begun_ = true;
  }

  /// When all rows are added.
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
  A* sums() const {
    if constexpr (std::is_same_v<T, A>) {
      return dweight_;
    } else {
      return sums_.data();
    }
  }

  // Columns [first, first + n) of g: transposed as a left factor, and added to the bias.
  template <typename G>
  void enter_block(const MatrixView<G>& g, int64_t first, int64_t n) const {
    const int64_t wide = padded(n), rows = padded(g.rows);
    const Buffer<O> part(rows * wide);
    const MatrixView<G> columns{g.data + first, g.rows, n, g.stride};
    if (dbias_ != nullptr) {
      for (int64_t i = 0; i < g.rows; ++i) {
        const G* row = columns.data + i * g.stride;
        A* sum = bias_.data() + first;
#pragma omp simd
        for (int64_t c = 0; c < n; ++c) sum[c] += convert<A>(row[c]);
      }
    }
    if (dweight_ == nullptr) return;
    pack_left<O>(columns, 0, rows, wide, part.data());
    pack_left_transposed<O>(part.data(), rows, wide, wide, left_.data() + first * kChunkRows,
                            kChunkRows);
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
