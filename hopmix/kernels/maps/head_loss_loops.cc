#include "hopmix/kernels/maps/head_loss_loops.h"

#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/maps/head_loss_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hopmix/kernels/base/exp-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {
namespace {

// Calls f(column) for each vector of columns.
template <typename A, typename F>
HWY_INLINE void for_columns(const F& f) {
  const int64_t lanes = hn::Lanes(Tag<A>());
  for (int64_t c = 0; c < kHeadRows; c += lanes) f(c);
}

// Finite, so that what is left of -inf is e^-inf = 0.
template <typename A>
HWY_INLINE Vec<A> lowest() {
  return hn::Set(Tag<A>(), std::numeric_limits<A>::lowest());
}

template <typename A>
void exponentials(A* tile, const A* bias, int64_t entries, A* largest, A* index, A* sum) {
  const Tag<A> d;
  for_columns<A>([&](int64_t c) HWY_ATTR {
    auto best = lowest<A>(), place = hn::Zero(d), total = hn::Zero(d);
    for (int64_t v = 0; v < entries; ++v) {
      A* at = tile + v * kHeadRows + c;
      auto logit = hn::LoadU(d, at);
      if (bias != nullptr) {
        logit = hn::Add(logit, hn::Set(d, bias[v]));
        hn::StoreU(logit, d, at);
      }
      const auto better = hn::Gt(logit, best);
      best = hn::IfThenElse(better, logit, best);
      place = hn::IfThenElse(better, hn::Set(d, static_cast<A>(v)), place);
    }
    for (int64_t v = 0; v < entries; ++v) {
      A* at = tile + v * kHeadRows + c;
      const auto e = exp_of(hn::Sub(hn::LoadU(d, at), best));
      total = hn::Add(total, e);
      hn::StoreU(e, d, at);
    }
    hn::StoreU(best, d, largest + c);
    hn::StoreU(place, d, index + c);
    hn::StoreU(total, d, sum + c);
  });
}

template <typename A>
void combine(const A* largest, const A* sum, int64_t blocks, A* lse) {
  const Tag<A> d;
  A bests[kHeadRows];
  for_columns<A>([&](int64_t c) HWY_ATTR {
    auto best = lowest<A>(), total = hn::Zero(d);
    for (int64_t b = 0; b < blocks; ++b) {
      best = hn::Max(best, hn::LoadU(d, largest + b * kHeadRows + c));
    }
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t at = b * kHeadRows + c;
      const auto share = exp_of(hn::Sub(hn::LoadU(d, largest + at), best));
      total = hn::MulAdd(hn::LoadU(d, sum + at), share, total);
    }
    hn::StoreU(best, d, bests + c);
    hn::StoreU(total, d, lse + c);
  });
  for (int64_t c = 0; c < kHeadRows; ++c) lse[c] = bests[c] + std::log(lse[c]);
}

template <typename A>
void factors(A* largest, int64_t blocks, const A* lse, const A* row_weights) {
  const Tag<A> d;
  for_columns<A>([&](int64_t c) HWY_ATTR {
    const auto all = hn::LoadU(d, lse + c), weight = hn::LoadU(d, row_weights + c);
    for (int64_t b = 0; b < blocks; ++b) {
      A* at = largest + b * kHeadRows + c;
      hn::StoreU(hn::Mul(weight, exp_of(hn::Sub(hn::LoadU(d, at), all))), d, at);
    }
  });
}

template <typename A>
void scale(A* tile, int64_t entries, const A* factor, A* sums) {
  const Tag<A> d;
  for (int64_t v = 0; v < entries; ++v) {
    auto sum = hn::Zero(d);
    for_columns<A>([&](int64_t c) HWY_ATTR {
      A* at = tile + v * kHeadRows + c;
      const auto y = hn::Mul(hn::LoadU(d, at), hn::LoadU(d, factor + c));
      sum = hn::Add(sum, y);
      hn::StoreU(y, d, at);
    });
    if (sums != nullptr) sums[v] += hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

template <typename A>
HeadLossLoops<A> loops() {
  return {exponentials<A>, combine<A>, factors<A>, scale<A>};
}
HeadLossLoops<float> loops_float() { return loops<float>(); }
HeadLossLoops<double> loops_double() { return loops<double>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hopmix::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(loops_float);
HWY_EXPORT(loops_double);

template <>
HeadLossLoops<float> head_loss_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_float)();
}
template <>
HeadLossLoops<double> head_loss_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_double)();
}

}  // namespace hopmix::kernels
#endif
