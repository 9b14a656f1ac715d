// e^x of vectors, for softmax and for decays and gates that are computed as they are read. Included
// once per instruction set.
#if defined(HOPMIX_KERNELS_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HOPMIX_KERNELS_EXP_INL_H_
#undef HOPMIX_KERNELS_EXP_INL_H_
#else
#define HOPMIX_KERNELS_EXP_INL_H_
#endif

#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename A>
using Tag = hn::ScalableTag<A>;
template <typename A>
using Vec = hn::Vec<Tag<A>>;

/// e^x, accurate to one or two units in the last place; 0 below the normal numbers, infinity above
/// the largest. Unlike in hn::Exp, NaN stays NaN; in float this is also faster.
HWY_INLINE Vec<float> exp_of(Vec<float> x) {
  const Tag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  // 2^n e^f with |f| <= ln(2) / 2; the polynomial approximates e^f to 2e-8. Adding 1.5 2^23 rounds
  // a number to an integer, which is then in its last bits.
  const auto magic = hn::Set(d, 12582912.0f);
  const auto shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const auto n = hn::Sub(shifted, magic);
  auto f = hn::NegMulAdd(n, hn::Set(d, 0.693145751953125f), x);
  f = hn::NegMulAdd(n, hn::Set(d, 1.42860682e-6f), f);
  auto y = hn::Set(d, 1.3888889e-3f);
  y = hn::MulAdd(y, f, hn::Set(d, 8.3333333e-3f));
  y = hn::MulAdd(y, f, hn::Set(d, 4.1666667e-2f));
  y = hn::MulAdd(y, f, hn::Set(d, 0.16666667f));
  y = hn::MulAdd(y, f, hn::Set(d, 0.5f));
  y = hn::MulAdd(y, f, hn::Set(d, 1.0f));
  y = hn::MulAdd(y, f, hn::Set(d, 1.0f));
  const auto power = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  y = hn::BitCast(d, hn::Add(hn::BitCast(di, y), power));
  y = hn::IfThenElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::Zero(d), y);
  const auto infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  return hn::IfThenElse(hn::Le(x, hn::Set(d, 88.7228f)), y, hn::Add(x, infinity));
}

HWY_INLINE Vec<double> exp_of(Vec<double> x) {
  const Tag<double> d;
  const auto infinity = hn::Set(d, std::numeric_limits<double>::infinity());
  const auto y = hn::IfThenElse(hn::Gt(x, hn::Set(d, 709.78)), infinity, hn::Exp(d, x));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

/// 1 / (1 + e^-x).
template <typename V>
HWY_INLINE V sigmoid_of(V x) {
  const hn::DFromV<V> d;
  const auto one = hn::Set(d, hn::TFromD<decltype(d)>{1});
  return hn::Div(one, hn::Add(one, exp_of(hn::Neg(x))));
}

}  // namespace hopmix::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
