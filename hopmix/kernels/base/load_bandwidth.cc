#include "hopmix/kernels/base/load_bandwidth.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/base/load_bandwidth.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once for each instruction set.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

// Eight sums at once: two loads a cycle and four cycles an addition. Eight vectors are at most a
// row's 128 floats.
struct Sums {
  V a, b, c, d, e, f, g, h;

  // Written out, or it would not be compiled for the target.
  Sums()
      : a(hn::Zero(D())),
        b(hn::Zero(D())),
        c(hn::Zero(D())),
        d(hn::Zero(D())),
        e(hn::Zero(D())),
        f(hn::Zero(D())),
        g(hn::Zero(D())),
        h(hn::Zero(D())) {}

  static int64_t step() { return 8 * static_cast<int64_t>(hn::Lanes(D())); }
  HWY_INLINE void add(const float* from) {
    const D tag;
    const size_t lanes = hn::Lanes(tag);
    a = hn::Add(a, hn::LoadU(tag, from));
    b = hn::Add(b, hn::LoadU(tag, from + lanes));
    c = hn::Add(c, hn::LoadU(tag, from + 2 * lanes));
    d = hn::Add(d, hn::LoadU(tag, from + 3 * lanes));
    e = hn::Add(e, hn::LoadU(tag, from + 4 * lanes));
    f = hn::Add(f, hn::LoadU(tag, from + 5 * lanes));
    g = hn::Add(g, hn::LoadU(tag, from + 6 * lanes));
    h = hn::Add(h, hn::LoadU(tag, from + 7 * lanes));
  }
  float total() const {
    const V ab = hn::Add(a, b), cd = hn::Add(c, d), ef = hn::Add(e, f), gh = hn::Add(g, h);
    return hn::GetLane(hn::SumOfLanes(D(), hn::Add(hn::Add(ab, cd), hn::Add(ef, gh))));
  }
};

float sum_in_order(const float* data, int64_t count) {
  Sums sums;
  const int64_t step = Sums::step();
  int64_t i = 0;
  for (; i + step <= count; i += step) sums.add(data + i);
  float rest = 0;
  for (; i < count; ++i) rest += data[i];
  return sums.total() + rest;
}

float sum_of_rows(const float* data, int64_t width, const int32_t* order, int64_t count) {
  Sums sums;
  const int64_t step = Sums::step();
  for (int64_t r = 0; r < count; ++r) {
    const float* row = data + order[r] * width;
    for (int64_t i = 0; i < width; i += step) sums.add(row + i);
  }
  return sums.total();
}

void scale_in_order(float* data, int64_t count, float factor) {
  const D tag;
  const auto lanes = static_cast<int64_t>(hn::Lanes(tag));
  const V by = hn::Set(tag, factor);
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    for (int64_t v = i; v < i + 4 * lanes; v += lanes) {
      hn::StoreU(hn::Mul(by, hn::LoadU(tag, data + v)), tag, data + v);
    }
  }
  for (; i < count; ++i) data[i] *= factor;
}

const char* simd_target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace hopmix::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(sum_in_order);
HWY_EXPORT(sum_of_rows);
HWY_EXPORT(scale_in_order);
HWY_EXPORT(simd_target);

float sum_in_order(const float* data, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(sum_in_order)(data, count);
}

float sum_of_rows(const float* data, int64_t width, const int32_t* order, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(sum_of_rows)(data, width, order, count);
}

void scale_in_order(float* data, int64_t count, float factor) {
  HWY_DYNAMIC_DISPATCH(scale_in_order)(data, count, factor);
}

std::string simd_target() { return HWY_DYNAMIC_DISPATCH(simd_target)(); }

}  // namespace hopmix::kernels
#endif
