#include "hopmix/kernels/maps/gelu_loops.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/maps/gelu_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hopmix/kernels/base/exp-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {
namespace {

constexpr double kRootHalf = 0.70710678118654752440;  // 1 / sqrt(2)
constexpr double kDensity = 0.39894228040143267794;   // phi(0)

// Phi(x), and phi(x) / phi(0).
template <typename V>
struct Normal {
  V phi, below;
};

// With u = |x| and t = 1 / (1 + 0.26 u), Phi(-u) = e^(-u^2 / 2) P(t): P is fitted to 2e-8 of its
// value up to u = 13, where Phi(-u) leaves the numbers of float. So the tail keeps its digits too.
HWY_INLINE Normal<Vec<float>> normal(Vec<float> x) {
  const Tag<float> d;
  const auto u = hn::Abs(x);
  const auto density = exp_of(hn::Mul(hn::Mul(u, u), hn::Set(d, -0.5f)));
  const auto t = hn::Div(hn::Set(d, 1.0f), hn::MulAdd(u, hn::Set(d, 0.26f), hn::Set(d, 1.0f)));
  auto p = hn::Set(d, 0.031066274763691018f);
  for (const float c :
       {-0.15557543280828176f, 0.25721268640356015f, -0.15756269870575249f, 0.16557832403227427f,
        0.04902115173561672f, 0.10355482582765241f, 0.10294121805319822f, 0.10376364142219403f}) {
    p = hn::MulAdd(p, t, hn::Set(d, c));
  }
  const auto tail = hn::Mul(density, hn::Mul(p, t));
  const auto negative = hn::Lt(x, hn::Zero(d));
  return {density, hn::IfThenElse(negative, tail, hn::Sub(hn::Set(d, 1.0f), tail))};
}

inline Normal<double> normal_of(double x) {
  return {std::exp(-0.5 * x * x), 0.5 * std::erfc(-x * kRootHalf)};
}

// f(vector of x at i) for whole vectors; the rest by way of a vector filled with zeros.
template <typename F>
HWY_INLINE void for_vectors(int64_t n, const F& f) {
  const int64_t lanes = hn::Lanes(Tag<float>());
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i, lanes);
  if (i < n) f(i, n - i);
}

HWY_INLINE Vec<float> load(const float* p, int64_t n) {
  const Tag<float> d;
  if (n == static_cast<int64_t>(hn::Lanes(d))) return hn::LoadU(d, p);
  HWY_ALIGN float some[hn::MaxLanes(Tag<float>())] = {};
  for (int64_t i = 0; i < n; ++i) some[i] = p[i];
  return hn::Load(d, some);
}

HWY_INLINE void store(Vec<float> x, float* p, int64_t n) {
  const Tag<float> d;
  if (n == static_cast<int64_t>(hn::Lanes(d))) return hn::StoreU(x, d, p);
  HWY_ALIGN float some[hn::MaxLanes(Tag<float>())];
  hn::Store(x, d, some);
  for (int64_t i = 0; i < n; ++i) p[i] = some[i];
}

void forward_float(int64_t n, const float* x, float* y) {
  for_vectors(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto v = load(x + i, count);
    store(hn::Mul(v, normal(v).below), y + i, count);
  });
}

void backward_float(int64_t n, const float* x, const float* dy, float* y, float* dx) {
  const Tag<float> d;
  for_vectors(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto v = load(x + i, count);
    const auto at = normal(v);
    const auto derivative =
        hn::MulAdd(hn::Mul(v, hn::Set(d, static_cast<float>(kDensity))), at.phi, at.below);
    const auto grad = hn::Mul(load(dy + i, count), derivative);
    store(hn::Mul(v, at.below), y + i, count);
    store(grad, dx + i, count);
  });
}

void forward_double(int64_t n, const double* x, double* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * normal_of(x[i]).below;
}

void backward_double(int64_t n, const double* x, const double* dy, double* y, double* dx) {
  for (int64_t i = 0; i < n; ++i) {
    const Normal<double> at = normal_of(x[i]);
    dx[i] = dy[i] * (at.below + x[i] * kDensity * at.phi);
    y[i] = x[i] * at.below;
  }
}

GeluLoops<float> loops_float() { return {forward_float, backward_float}; }
GeluLoops<double> loops_double() { return {forward_double, backward_double}; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hopmix::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(loops_float);
HWY_EXPORT(loops_double);

template <>
GeluLoops<float> gelu_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_float)();
}
template <>
GeluLoops<double> gelu_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_double)();
}

}  // namespace hopmix::kernels
#endif
