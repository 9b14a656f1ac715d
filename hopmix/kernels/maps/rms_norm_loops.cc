#include "hopmix/kernels/maps/rms_norm_loops.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/maps/rms_norm_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hopmix/kernels/rows/row_ops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {
namespace {

// Calls vectors(c) for whole vectors of a row, then channel(c) for what is left.
template <typename A, typename Vectors, typename Channel>
HWY_INLINE void for_columns(int64_t width, const Vectors& vectors, const Channel& channel) {
  const int64_t lanes = hn::Lanes(Tag<A>());
  int64_t c = 0;
  for (; c + lanes <= width; c += lanes) vectors(c);
  for (; c < width; ++c) channel(c);
}

template <typename T>
HWY_INLINE Accumulator<T> wide(T x) {
  return static_cast<Accumulator<T>>(x);
}

// 1 / rms of a row whose squares add up to `squares`.
template <typename T>
HWY_INLINE Accumulator<T> inverse_rms(const RmsNormInputs<T>& in, Accumulator<T> squares) {
  using A = Accumulator<T>;
  return A{1} / std::sqrt(squares / static_cast<A>(in.width) + static_cast<A>(in.eps));
}

template <typename T>
void forward(const RmsNormInputs<T>& in, const RmsNormRows& rows, T* all_y) {
  using A = Accumulator<T>;
  const Tag<A> d;
  const T* weight = in.weight;
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const T* x = in.x + i * in.width;
    T* y = all_y + i * in.width;
    auto sum = hn::Zero(d);
    A rest = 0;
    for_columns<A>(
        in.width,
        [&](int64_t c) HWY_ATTR {
          const auto v = load_as(x + c);
          sum = hn::MulAdd(v, v, sum);
        },
        [&](int64_t c) HWY_ATTR { rest += wide(x[c]) * wide(x[c]); });
    const A r = inverse_rms(in, hn::GetLane(hn::SumOfLanes(d, sum)) + rest);
    const auto scale = hn::Set(d, r);
    for_columns<A>(
        in.width,
        [&](int64_t c) HWY_ATTR {
          store_as(hn::Mul(hn::Mul(load_as(x + c), scale), load_as(weight + c)), y + c);
        },
        [&](int64_t c) HWY_ATTR { y[c] = static_cast<T>(wide(x[c]) * r * wide(weight[c])); });
  }
}

// With r = 1 / rms and g = grad_y weight: dx = r g - x r^3 mean(g x), dweight = sum grad_y x r.
template <typename T>
void backward(const RmsNormInputs<T>& in, const RmsNormRows& rows, const T* grad_y, T* all_dx,
              Accumulator<T>* dweight) {
  using A = Accumulator<T>;
  const Tag<A> d;
  const T* weight = in.weight;
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const T *x = in.x + i * in.width, *dy = grad_y + i * in.width;
    auto squares = hn::Zero(d), products = hn::Zero(d);
    A rest = 0, rest_products = 0;
    for_columns<A>(
        in.width,
        [&](int64_t c) HWY_ATTR {
          const auto v = load_as(x + c);
          squares = hn::MulAdd(v, v, squares);
          products = hn::MulAdd(hn::Mul(load_as(dy + c), load_as(weight + c)), v, products);
        },
        [&](int64_t c) HWY_ATTR {
          rest += wide(x[c]) * wide(x[c]);
          rest_products += wide(dy[c]) * wide(weight[c]) * wide(x[c]);
        });
    const A r = inverse_rms(in, hn::GetLane(hn::SumOfLanes(d, squares)) + rest);
    const A product = hn::GetLane(hn::SumOfLanes(d, products)) + rest_products;
    const A back = r * r * r * product / static_cast<A>(in.width);
    const auto scale = hn::Set(d, r), pull = hn::Set(d, back);
    T* dx = all_dx ? all_dx + i * in.width : nullptr;
    for_columns<A>(
        in.width,
        [&](int64_t c) HWY_ATTR {
          const auto v = load_as(x + c);
          const auto g = hn::Mul(load_as(dy + c), scale);
          if (dweight) {
            hn::StoreU(hn::MulAdd(g, v, hn::LoadU(d, dweight + c)), d, dweight + c);
          }
          if (dx) store_as(hn::NegMulAdd(v, pull, hn::Mul(g, load_as(weight + c))), dx + c);
        },
        [&](int64_t c) HWY_ATTR {
          const A g = wide(dy[c]) * r;
          if (dweight) dweight[c] += g * wide(x[c]);
          if (dx) dx[c] = static_cast<T>(g * wide(weight[c]) - wide(x[c]) * back);
        });
  }
}

template <typename T>
RmsNormLoops<T> loops() {
  return {forward<T>, backward<T>};
}
RmsNormLoops<float> loops_float() { return loops<float>(); }
RmsNormLoops<double> loops_double() { return loops<double>(); }
RmsNormLoops<Bfloat16> loops_bfloat16() { return loops<Bfloat16>(); }

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
RmsNormLoops<float> rms_norm_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_float)();
}
template <>
RmsNormLoops<double> rms_norm_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_double)();
}
template <>
RmsNormLoops<Bfloat16> rms_norm_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_bfloat16)();
}

}  // namespace hopmix::kernels
#endif
