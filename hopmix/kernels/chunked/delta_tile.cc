#include "hopmix/kernels/chunked/delta_tile.h"

#include <algorithm>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/chunked/delta_tile.cc"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include "hopmix/kernels/base/exp-inl.h"
#include "hopmix/kernels/rows/row_ops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {
namespace {

/// Lanes c, c + 1, ... that are below `count`.
template <class D>
HWY_INLINE hn::Mask<D> below(D d, int64_t c, int64_t count) {
  const int64_t inside = std::clamp<int64_t>(count - c, 0, hn::Lanes(d));
  return hn::FirstN(d, static_cast<size_t>(inside));
}

/// G of one token in all lanes, and that of others.
template <typename A>
class Decays {
 public:
  Decays(const DeltaScores<A>& s, int64_t row) : s_(s) {
    if (!s.high) return;
    high_ = hn::Set(Tag<A>(), s.high[row]);
    low_ = hn::Set(Tag<A>(), s.low[row]);
  }
  /// e^(G_row - G_c) for the lanes from c on.
  HWY_INLINE Vec<A> from(int64_t c) const {
    const Tag<A> d;
    if (!s_.high) return hn::Set(d, A{1});
    return exp_of(hn::Add(hn::Sub(high_, hn::LoadU(d, s_.high + c)),
                          hn::Sub(low_, hn::LoadU(d, s_.low + c))));
  }
  /// e^(G_c - G_row).
  HWY_INLINE Vec<A> to(int64_t c) const {
    const Tag<A> d;
    if (!s_.high) return hn::Set(d, A{1});
    return exp_of(hn::Add(hn::Sub(hn::LoadU(d, s_.high + c), high_),
                          hn::Sub(hn::LoadU(d, s_.low + c), low_)));
  }

 private:
  const DeltaScores<A>& s_;
  Vec<A> high_ = hn::Zero(Tag<A>()), low_ = hn::Zero(Tag<A>());
};

template <typename A, typename O>
void weights(const DeltaScores<A>& s, A* m, O* p) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t i = 0; i < s.n; ++i) {
    const Decays<A> decays(s, i);
    int64_t c = 0;
    for (int64_t at = i * s.n; c <= i; c += lanes) {
      const auto decay = decays.from(c);
      const auto kk = hn::Mul(decay, hn::LoadU(d, s.kk + at + c));
      if (p) {
        const auto qk = hn::Mul(decay, hn::LoadU(d, s.qk + at + c));
        store_as(hn::IfThenElseZero(below(d, c, i + 1), qk), p + at + c);
      }
      hn::StoreU(hn::IfThenElseZero(below(d, c, i), kk), d, m + at + c);
    }
    for (; c < s.n; c += lanes) {
      hn::StoreU(hn::Zero(d), d, m + i * s.n + c);
      if (p) store_as(hn::Zero(d), p + i * s.n + c);
    }
  }
}

template <typename A, typename O>
void weights_transposed(const DeltaScores<A>& s, A* decay, A* m, O* p) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t j = 0; j < s.n; ++j) {
    const Decays<A> decays(s, j);
    const int64_t row = j * s.n;
    int64_t c = 0;
    for (; c + lanes <= j; c += lanes) {
      hn::StoreU(hn::Zero(d), d, decay + row + c);
      hn::StoreU(hn::Zero(d), d, m + row + c);
      store_as(hn::Zero(d), p + row + c);
    }
    for (; c < s.n; c += lanes) {
      const auto e = hn::IfThenZeroElse(below(d, c, j), decays.to(c));
      const auto kk = hn::Mul(e, hn::LoadU(d, s.kk + j * s.n + c));
      const auto qk = hn::Mul(e, hn::LoadU(d, s.qk + j * s.n + c));
      hn::StoreU(e, d, decay + row + c);
      hn::StoreU(hn::IfThenZeroElse(below(d, c, j + 1), kk), d, m + row + c);
      store_as(hn::IfThenZeroElse(below(d, c, j), qk), p + row + c);
    }
  }
}

template <typename A>
void weights_backward(const DeltaScores<A>& s, const A* decay, const A* m, const A* dm, const A* dp,
                      A* dkk, A* dqk, A* sums, A* dg) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  if (dg) std::fill_n(sums, s.n, A{0});  // over the rows so far, for each i
  for (int64_t j = 0; j < s.n; ++j) {
    const int64_t row = j * s.n, from = j / lanes * lanes;
    for (int64_t c = 0; c < from; c += lanes) {
      hn::StoreU(hn::Zero(d), d, dkk + row + c);
      hn::StoreU(hn::Zero(d), d, dqk + row + c);
    }
    auto total = hn::Zero(d);
    for (int64_t c = from; c < s.n; c += lanes) {
      const auto hidden = below(d, c, j), past = below(d, c, j + 1);
      const auto e = hn::LoadU(d, decay + row + c);
      const auto gp = hn::IfThenZeroElse(hidden, hn::LoadU(d, dp + j * s.n + c));
      const auto gm = hn::IfThenZeroElse(past, hn::LoadU(d, dm + j * s.n + c));
      const auto gq = hn::Mul(e, gp);
      hn::StoreU(gq, d, dqk + row + c);
      hn::StoreU(hn::Mul(e, gm), d, dkk + row + c);
      if (dg) {
        const auto sum = hn::LoadU(d, sums + c);
        total = hn::Add(total, hn::IfThenZeroElse(hidden, sum));
        const auto both = hn::MulAdd(gq, hn::LoadU(d, s.qk + j * s.n + c),
                                     hn::Mul(gm, hn::LoadU(d, m + row + c)));
        hn::StoreU(hn::Add(sum, hn::IfThenZeroElse(past, both)), d, sums + c);
      }
    }
    if (dg) dg[j] = hn::GetLane(hn::SumOfLanes(d, total));
  }
}

template <typename A>
void errors(int64_t n, int64_t width, const A* beta, const A* v, const A* x, A* w, A* u) {
  const Tag<A> d;
  for (int64_t i = 0; i < n; ++i) {
    const auto b = hn::Set(d, beta[i]);
    for (int64_t c = i * width; c < (i + 1) * width; c += hn::Lanes(d)) {
      const auto error = hn::Sub(hn::LoadU(d, v + c), hn::LoadU(d, x + c));
      hn::StoreU(error, d, w + c);
      hn::StoreU(hn::Mul(b, error), d, u + c);
    }
  }
}

template <typename A>
void add(int64_t size, const A* x, A* y) {
  const Tag<A> d;
  for (int64_t c = 0; c < size; c += hn::Lanes(d)) {
    hn::StoreU(hn::Add(hn::LoadU(d, x + c), hn::LoadU(d, y + c)), d, y + c);
  }
}

template <typename A, typename O>
DeltaTable<A, O> table() {
  return {weights<A, O>, weights_transposed<A, O>, weights_backward<A>, errors<A>, add<A>};
}

// What is exported cannot be a template.
DeltaTable<float, float> float_table() { return table<float, float>(); }
DeltaTable<float, Bfloat16> bfloat16_table() { return table<float, Bfloat16>(); }
DeltaTable<double, double> double_table() { return table<double, double>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hopmix::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(float_table);
HWY_EXPORT(bfloat16_table);
HWY_EXPORT(double_table);

template <typename A, typename O>
DeltaTable<A, O> delta_tiles() {
  if constexpr (std::is_same_v<O, Bfloat16>) {
    return HWY_DYNAMIC_DISPATCH(bfloat16_table)();
  } else if constexpr (std::is_same_v<A, double>) {
    return HWY_DYNAMIC_DISPATCH(double_table)();
  } else {
    return HWY_DYNAMIC_DISPATCH(float_table)();
  }
}

template DeltaTable<float, float> delta_tiles();
template DeltaTable<float, Bfloat16> delta_tiles();
template DeltaTable<double, double> delta_tiles();

}  // namespace hopmix::kernels
#endif
