#include "hopmix/kernels/chunked/chunk_loops.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/chunked/chunk_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hopmix/kernels/base/exp-inl.h"
#include "hopmix/kernels/rows/row_ops-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {
namespace {

// Rows of a tensor fetched ahead: they lie `stride` apart, which hardware prefetchers do not
// follow.
constexpr int64_t kAhead = 8;

template <typename T>
void load(const T* from, int64_t stride, int64_t length, int64_t width, Accumulator<T> factor,
          Accumulator<T>* to, int64_t rows, int64_t ld) {
  using A = Accumulator<T>;
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  constexpr int64_t kLine = 64 / sizeof(T);
  const auto f = hn::Set(d, factor);
  for (int64_t i = 0; i < length; ++i, from += stride, to += ld) {
    for (int64_t c = 0; c < width && i + kAhead < length; c += kLine) {
      hwy::Prefetch(from + kAhead * stride + c);
    }
    int64_t c = 0;
    for (; c + lanes <= width; c += lanes) hn::StoreU(hn::Mul(f, load_as(from + c)), d, to + c);
    for (; c < width; ++c) to[c] = factor * static_cast<A>(from[c]);
    for (; c < ld; ++c) to[c] = A{0};
  }
  std::fill_n(to, (rows - length) * ld, A{0});
}

template <typename T>
void store(const Accumulator<T>* from, int64_t ld, int64_t length, int64_t width,
           Accumulator<T> factor, T* to, int64_t stride) {
  const Tag<Accumulator<T>> d;
  const int64_t lanes = hn::Lanes(d);
  const auto f = hn::Set(d, factor);
  for (int64_t i = 0; i < length; ++i, from += ld, to += stride) {
    int64_t c = 0;
    for (; c + lanes <= width; c += lanes) store_as(hn::Mul(f, hn::LoadU(d, from + c)), to + c);
    for (; c < width; ++c) to[c] = static_cast<T>(factor * from[c]);
  }
}

void round_left(const float* x, int64_t size, Bfloat16* out) {
  const Tag<float> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t c = 0; c < size; c += lanes) store_as(hn::LoadU(d, x + c), out + c);
}

void round_right(const float* x, int64_t rows, int64_t width, Bfloat16* out) {
  const Tag<float> d;
  const int64_t lanes = hn::Lanes(d);
  auto* words = reinterpret_cast<uint32_t*>(out);
  const hn::RebindToUnsigned<decltype(d)> bits;
  for (int64_t i = 0; i < rows; i += 2, x += 2 * width, words += width) {
    for (int64_t c = 0; c < width; c += lanes) {
      const auto even = rounded_bits(hn::LoadU(d, x + c));
      const auto odd = rounded_bits(hn::LoadU(d, x + width + c));
      hn::StoreU(hn::Or(even, hn::ShiftLeft<16>(odd)), bits, words + c);
    }
  }
}

// Calls f(i, j) for the vectors of a matrix [n, n] in which a query sees a key and writes 0 into
// the others of `y`. Of the vectors on the diagonal f gets some lanes too many:
// store them with store_visible.
template <typename A, typename F>
HWY_INLINE void for_visible(int64_t n, bool transposed, A* y, const F& f) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t diagonal = i / lanes * lanes;
    const int64_t begin = transposed ? diagonal : 0, end = transposed ? n : diagonal + lanes;
    for (int64_t j = 0; j < begin; j += lanes) hn::StoreU(hn::Zero(d), d, y + i * n + j);
    for (int64_t j = begin; j < end; j += lanes) f(i, j);
    for (int64_t j = end; j < n; j += lanes) hn::StoreU(hn::Zero(d), d, y + i * n + j);
  }
}

// y [i, j ...] = x, but 0 where the query does not see the key.
template <typename A>
HWY_INLINE void store_visible(Vec<A> x, int64_t n, bool transposed, int64_t i, int64_t j, A* y) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  if (i / lanes * lanes == j) {
    x = transposed ? hn::IfThenZeroElse(hn::FirstN(d, i - j), x)
                   : hn::IfThenElseZero(hn::FirstN(d, i - j + 1), x);
  }
  hn::StoreU(x, d, y + i * n + j);
}

template <typename A>
void mask(const A* x, const A* m, int64_t n, bool transposed, A* y) {
  const Tag<A> d;
  for_visible(n, transposed, y, [&](int64_t i, int64_t j) HWY_ATTR {
    auto v = hn::LoadU(d, x + i * n + j);
    if (m != nullptr) v = hn::Mul(v, hn::LoadU(d, m + i * n + j));
    store_visible<A>(v, n, transposed, i, j, y);
  });
}

template <typename A>
void decays(const A* high, const A* low, int64_t n, bool transposed, A* m) {
  const Tag<A> d;
  for_visible(n, transposed, m, [&](int64_t i, int64_t j) HWY_ATTR {
    const auto rows = hn::Set(d, high[i]), columns = hn::LoadU(d, high + j);
    const auto rows_low = hn::Set(d, low[i]), columns_low = hn::LoadU(d, low + j);
    // The rounding of b cancels: high parts that are near have an exact difference.
    const auto x = transposed ? hn::Add(hn::Sub(columns, rows), hn::Sub(columns_low, rows_low))
                              : hn::Add(hn::Sub(rows, columns), hn::Sub(rows_low, columns_low));
    store_visible<A>(exp_of(x), n, transposed, i, j, m);
  });
}

template <typename A>
void decay_gradient(const A* a, const A* da, int64_t n, A* scratch, A* dg) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  std::fill_n(scratch, n, A{0});
  dg[0] = 0;
  for (int64_t r = 1; r < n; ++r) {
    const A *x = a + (r - 1) * n, *y = da + (r - 1) * n;
    const int64_t first = r / lanes * lanes;
    auto sum = hn::Zero(d);
    for (int64_t t = first; t < n; t += lanes) {
      // scratch_t = the sum of e over keys < r; of a query < r it is stale and not summed.
      const auto c =
          hn::MulAdd(hn::LoadU(d, x + t), hn::LoadU(d, y + t), hn::LoadU(d, scratch + t));
      hn::StoreU(c, d, scratch + t);
      sum = hn::Add(sum, t == first ? hn::IfThenZeroElse(hn::FirstN(d, r - first), c) : c);
    }
    dg[r] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

template <typename A>
void scale_rows(const A* x, const A* factor, int64_t n, int64_t width, A* y) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t i = 0; i < n; ++i, x += width, y += width) {
    const auto f = hn::Set(d, factor[i]);
    for (int64_t c = 0; c < width; c += lanes) {
      hn::StoreU(hn::Mul(f, hn::LoadU(d, x + c)), d, y + c);
    }
  }
}

template <typename A>
void row_dots(const A* x, const A* y, int64_t n, int64_t width, A* out) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t i = 0; i < n; ++i, x += width, y += width) {
    auto sum = hn::Zero(d);
    for (int64_t c = 0; c < width; c += lanes) {
      sum = hn::MulAdd(hn::LoadU(d, x + c), hn::LoadU(d, y + c), sum);
    }
    out[i] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

template <typename T>
TileLoops<T> tile_table() {
  return {load<T>, store<T>};
}
TileLoops<float> tile_float() { return tile_table<float>(); }
TileLoops<double> tile_double() { return tile_table<double>(); }
TileLoops<Bfloat16> tile_bfloat16() { return tile_table<Bfloat16>(); }

RoundingLoops rounding_table() { return {round_left, round_right}; }

template <typename A>
ChunkLoops<A> chunk_table() {
  return {mask<A>, decays<A>, decay_gradient<A>, scale_rows<A>, row_dots<A>};
}
ChunkLoops<float> chunk_float() { return chunk_table<float>(); }
ChunkLoops<double> chunk_double() { return chunk_table<double>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hopmix::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(tile_float);
HWY_EXPORT(tile_double);
HWY_EXPORT(tile_bfloat16);
HWY_EXPORT(rounding_table);
HWY_EXPORT(chunk_float);
HWY_EXPORT(chunk_double);

template <>
TileLoops<float> tile_loops() {
  return HWY_DYNAMIC_DISPATCH(tile_float)();
}
template <>
TileLoops<double> tile_loops() {
  return HWY_DYNAMIC_DISPATCH(tile_double)();
}
template <>
TileLoops<Bfloat16> tile_loops() {
  return HWY_DYNAMIC_DISPATCH(tile_bfloat16)();
}

RoundingLoops rounding_loops() { return HWY_DYNAMIC_DISPATCH(rounding_table)(); }

template <>
ChunkLoops<float> chunk_loops() {
  return HWY_DYNAMIC_DISPATCH(chunk_float)();
}
template <>
ChunkLoops<double> chunk_loops() {
  return HWY_DYNAMIC_DISPATCH(chunk_double)();
}

}  // namespace hopmix::kernels
#endif
