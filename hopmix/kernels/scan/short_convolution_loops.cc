#include "hopmix/kernels/scan/short_convolution_loops.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/scan/short_convolution_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hopmix/kernels/base/exp-inl.h"
#include "hopmix/kernels/rows/row_ops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {
namespace {

// kTaps is the number of taps, or 0 for any: then arrays are in memory.
constexpr int64_t array_size(int64_t taps) { return taps == 0 ? kMostTaps : taps; }

// Token t - j of a column, 0 before the sequence.
template <typename T>
HWY_INLINE Vec<Accumulator<T>> token_before(const T* x, int64_t stride, int64_t t, int64_t j) {
  return t < j ? hn::Zero(Tag<Accumulator<T>>()) : load_as(x + (t - j) * stride);
}

template <int64_t kTaps, typename T>
HWY_INLINE void forward_column(const ConvolutionPiece<T>& p, int64_t c, T* y) {
  using A = Accumulator<T>;
  const Tag<A> d;
  const int64_t taps = kTaps == 0 ? p.taps : kTaps;
  Vec<A> w[array_size(kTaps)];
  for (int64_t j = 0; j < taps; ++j) w[j] = hn::LoadU(d, p.weight + j * p.weight_stride + c);
  const auto bias = hn::LoadU(d, p.weight + taps * p.weight_stride + c);
  const T* x = p.x + c;
  const auto finish = [&](int64_t t, Vec<A> s) HWY_ATTR {
    store_as(p.silu ? hn::Mul(s, sigmoid_of(s)) : s, y + t * p.stride + c);
  };
  int64_t t = p.begin;
  for (; t < std::min(taps - 1, p.end); ++t) {
    auto s = bias;
    for (int64_t j = 0; j < taps; ++j) s = hn::MulAdd(w[j], token_before(x, p.stride, t, j), s);
    finish(t, s);
  }
  for (; t < p.end; ++t) {
    auto s = bias;
    for (int64_t j = 0; j < taps; ++j) s = hn::MulAdd(w[j], load_as(x + (t - j) * p.stride), s);
    finish(t, s);
  }
}

// ds_t = dLoss/ds_t, s what SiLU takes in; dx_t = sum_j w_j ds_{t+j}. The piece sums over its own
// tokens, and computes the ds of the taps - 1 after it again.
template <int64_t kTaps, typename T>
HWY_INLINE void backward_column(const ConvolutionPiece<T>& p, int64_t c, const T* grad_y, T* dx,
                                Accumulator<T>* sums) {
  using A = Accumulator<T>;
  const Tag<A> d;
  const int64_t taps = kTaps == 0 ? p.taps : kTaps;
  Vec<A> w[array_size(kTaps)], sum[array_size(kTaps)], ds[array_size(kTaps)];
  for (int64_t j = 0; j < taps; ++j) {
    w[j] = hn::LoadU(d, p.weight + j * p.weight_stride + c);
    sum[j] = ds[j] = hn::Zero(d);
  }
  const auto bias = hn::LoadU(d, p.weight + taps * p.weight_stride + c);
  auto sum_bias = hn::Zero(d);
  const auto one = hn::Set(d, A{1});
  const T* x = p.x + c;
  for (int64_t t = std::min(p.end + taps - 1, p.length) - 1; t >= p.begin; --t) {
    Vec<A> before[array_size(kTaps)];
    for (int64_t j = 0; j < taps; ++j) before[j] = token_before(x, p.stride, t, j);
    auto d_sum = load_as(grad_y + t * p.stride + c);
    if (p.silu) {
      auto s = bias;
      for (int64_t j = 0; j < taps; ++j) s = hn::MulAdd(w[j], before[j], s);
      const auto gate = sigmoid_of(s);
      const auto bend = hn::MulAdd(s, hn::Sub(one, gate), one);
      d_sum = hn::Mul(d_sum, hn::Mul(gate, bend));
    }
    for (int64_t j = taps - 1; j > 0; --j) ds[j] = ds[j - 1];
    ds[0] = d_sum;
    if (t >= p.end) continue;
    if (sums) {
      for (int64_t j = 0; j < taps; ++j) sum[j] = hn::MulAdd(d_sum, before[j], sum[j]);
      sum_bias = hn::Add(sum_bias, d_sum);
    }
    if (dx) {
      auto back = hn::Mul(w[0], ds[0]);
      for (int64_t j = 1; j < taps; ++j) back = hn::MulAdd(w[j], ds[j], back);
      store_as(back, dx + t * p.stride + c);
    }
  }
  if (!sums) return;
  for (int64_t j = 0; j < taps; ++j) hn::StoreU(sum[j], d, sums + j * p.weight_stride + c);
  hn::StoreU(sum_bias, d, sums + taps * p.weight_stride + c);
}

// Calls body(kTaps) with the number of taps where registers hold them.
template <typename Body>
HWY_INLINE void with_taps(int64_t taps, const Body& body) {
  if (taps == 4) {
    body(std::integral_constant<int64_t, 4>());
  } else if (taps == 3) {
    body(std::integral_constant<int64_t, 3>());
  } else if (taps == 2) {
    body(std::integral_constant<int64_t, 2>());
  } else {
    body(std::integral_constant<int64_t, 0>());
  }
}

template <typename T>
void forward(const ConvolutionPiece<T>& p, T* y) {
  const int64_t lanes = hn::Lanes(Tag<Accumulator<T>>());
  with_taps(p.taps, [&](auto taps) HWY_ATTR {
    for (int64_t c = 0; c < p.width; c += lanes) forward_column<taps>(p, c, y);
  });
}

template <typename T>
void backward(const ConvolutionPiece<T>& p, const T* grad_y, T* dx, Accumulator<T>* sums) {
  const int64_t lanes = hn::Lanes(Tag<Accumulator<T>>());
  with_taps(p.taps, [&](auto taps) HWY_ATTR {
    for (int64_t c = 0; c < p.width; c += lanes) backward_column<taps>(p, c, grad_y, dx, sums);
  });
}

template <typename T>
ShortConvolutionLoops<T> loops() {
  return {forward<T>, backward<T>};
}
ShortConvolutionLoops<float> loops_float() { return loops<float>(); }
ShortConvolutionLoops<double> loops_double() { return loops<double>(); }
ShortConvolutionLoops<Bfloat16> loops_bfloat16() { return loops<Bfloat16>(); }

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
ShortConvolutionLoops<float> short_convolution_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_float)();
}
template <>
ShortConvolutionLoops<double> short_convolution_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_double)();
}
template <>
ShortConvolutionLoops<Bfloat16> short_convolution_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_bfloat16)();
}

}  // namespace hopmix::kernels
#endif
