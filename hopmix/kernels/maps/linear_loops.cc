#include "hopmix/kernels/maps/linear_loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/maps/linear_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hopmix/kernels/rows/row_ops-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {
namespace {

// Numbers of T in a line of the caches.
template <typename T>
constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));

// kOutputs rows of the weight by kRows of x. With few rows of x the loads of the weight are the
// work: the rows after these are fetched meanwhile, in the order in which they lie.
template <int64_t kRows, int64_t kOutputs, typename T>
HWY_INLINE void dot_block(int64_t inputs, const Accumulator<T>* HWY_RESTRICT x,
                          const T* HWY_RESTRICT w, Accumulator<T>* HWY_RESTRICT y, int64_t ldy) {
  using A = Accumulator<T>;
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  Vec<A> sums[kRows][kOutputs];
#pragma GCC unroll 4
  for (int64_t m = 0; m < kRows; ++m) {
#pragma GCC unroll 8
    for (int64_t n = 0; n < kOutputs; ++n) sums[m][n] = hn::Zero(d);
  }
  constexpr int64_t kAhead =
      kRows > 2 ? 0 : kOutputs * static_cast<int64_t>(hn::MaxLanes(d)) / kLine<T>;
  const auto next = reinterpret_cast<uintptr_t>(w + kOutputs * inputs);
  int64_t c = 0;
  for (; c + lanes <= inputs; c += lanes) {
#pragma GCC unroll 8
    for (int64_t l = 0; l < kAhead; ++l) {
      hwy::Prefetch(reinterpret_cast<const T*>(next + (c / lanes * kAhead + l) * 64));
    }
    Vec<A> row[kRows];
#pragma GCC unroll 4
    for (int64_t m = 0; m < kRows; ++m) row[m] = hn::LoadU(d, x + m * inputs + c);
#pragma GCC unroll 8
    for (int64_t n = 0; n < kOutputs; ++n) {
      const auto weight = load_as(w + n * inputs + c);
#pragma GCC unroll 4
      for (int64_t m = 0; m < kRows; ++m) sums[m][n] = hn::MulAdd(row[m], weight, sums[m][n]);
    }
  }
#pragma GCC unroll 4
  for (int64_t m = 0; m < kRows; ++m) {
    A out[kOutputs];
    if constexpr (kOutputs % 4 == 0) {
#pragma GCC unroll 2
      for (int64_t n = 0; n < kOutputs; n += 4) {
        store_sums<A>(sums[m][n], sums[m][n + 1], sums[m][n + 2], sums[m][n + 3], A{1}, out + n);
      }
    } else {
      for (int64_t n = 0; n < kOutputs; ++n) out[n] = hn::GetLane(hn::SumOfLanes(d, sums[m][n]));
    }
    for (int64_t n = 0; n < kOutputs; ++n) {
      for (int64_t t = c; t < inputs; ++t) {
        out[n] += x[m * inputs + t] * static_cast<A>(w[n * inputs + t]);
      }
      y[m * ldy + n] = out[n];
    }
  }
}

// As many rows of the weight at a time as their sums fit in the registers.
template <int64_t kRows, typename T>
void dots_of(int64_t outputs, int64_t inputs, const Accumulator<T>* x, const T* w,
             Accumulator<T>* y, int64_t ldy) {
  constexpr int64_t kOutputs = kRows == 1 ? 8 : kRows == 2 ? 4 : 2;
  int64_t n = 0;
  for (; n + kOutputs <= outputs; n += kOutputs) {
    dot_block<kRows, kOutputs>(inputs, x, w + n * inputs, y + n, ldy);
  }
  for (; n < outputs; ++n) dot_block<kRows, 1>(inputs, x, w + n * inputs, y + n, ldy);
}

template <typename T>
void dots(int64_t rows, int64_t outputs, int64_t inputs, const Accumulator<T>* x, const T* w,
          Accumulator<T>* y, int64_t ldy) {
  static_assert(kDotRows == 4);
  if (rows == 4) return dots_of<4>(outputs, inputs, x, w, y, ldy);
  if (rows == 3) return dots_of<3>(outputs, inputs, x, w, y, ldy);
  if (rows == 2) return dots_of<2>(outputs, inputs, x, w, y, ldy);
  if (rows == 1) return dots_of<1>(outputs, inputs, x, w, y, ldy);
}

LinearLoops<float> loops_float() { return {dots<float>}; }
LinearLoops<double> loops_double() { return {dots<double>}; }
LinearLoops<Bfloat16> loops_bfloat16() { return {dots<Bfloat16>}; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hopmix::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(loops_float);
HWY_EXPORT(loops_double);
HWY_EXPORT(loops_bfloat16);

template <>
LinearLoops<float> linear_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_float)();
}
template <>
LinearLoops<double> linear_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_double)();
}
template <>
LinearLoops<Bfloat16> linear_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_bfloat16)();
}

}  // namespace hopmix::kernels
#endif
