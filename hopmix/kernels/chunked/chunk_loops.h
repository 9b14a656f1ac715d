// The parts of chunked recurrences (chunked_heads.h) that are not matrix products, compiled for
// every instruction set and selected at run time. Tiles are row-major; numbers of rows and columns
// are multiples of kTileLanes, so only loops over tensors have tails.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/dense/softmax_tile.h"

namespace hopmix::kernels {

/// Copies between a tensor's rows of one head, `stride` apart, and a tile [rows, ld].
template <typename T>
struct TileLoops {
  using A = Accumulator<T>;
  /// to = factor * from [length, width], and 0 in the padding.
  void (*load)(const T* from, int64_t stride, int64_t length, int64_t width, A factor, A* to,
               int64_t rows, int64_t ld);
  /// to [length, width] = factor * from.
  void (*store)(const A* from, int64_t ld, int64_t length, int64_t width, A factor, T* to,
                int64_t stride);
};

template <typename T>
TileLoops<T> tile_loops();

/// Operands for bfloat16 products, from float tiles of `size` entries or [rows, width].
struct RoundingLoops {
  void (*left)(const float* x, int64_t size, Bfloat16* out);
  /// Rows 2i and 2i + 1 interleaved.
  void (*right)(const float* x, int64_t rows, int64_t width, Bfloat16* out);
};

RoundingLoops rounding_loops();

/// `n` tokens. A matrix [n, n] has queries as rows and keys as columns, or the reverse if
/// `transposed`. A query sees the keys up to its own position.
template <typename A>
struct ChunkLoops {
  /// y = x where the query sees the key, times m unless that is null; otherwise 0. y may be x.
  void (*mask)(const A* x, const A* m, int64_t n, bool transposed, A* y);

  /// m = e^(b_query - b_key) where the query sees the key, with b = high + low; otherwise 0.
  void (*decays)(const A* high, const A* low, int64_t n, bool transposed, A* m);

  /// Let e = a o da, both transposed, be the gradient of the logarithms of these m. Then dg_r is
  /// the sum of e over keys < r and queries >= r. `scratch` is [n].
  void (*decay_gradient)(const A* a, const A* da, int64_t n, A* scratch, A* dg);

  /// y_i = factor_i x_i for rows [n, width]. y may be x.
  void (*scale_rows)(const A* x, const A* factor, int64_t n, int64_t width, A* y);

  /// out_i = x_i . y_i
  void (*row_dots)(const A* x, const A* y, int64_t n, int64_t width, A* out);
};

template <typename A>
ChunkLoops<A> chunk_loops();

}  // namespace hopmix::kernels
