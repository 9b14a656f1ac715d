#include "hopmix/kernels/rows/row_loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/rows/row_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hopmix/kernels/rows/row_ops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {
namespace {

template <typename A>
void dots(const ReadsView& reads, BlockRows<const A> x, const A* base, int64_t width, A factor,
          const PerRead<A>& out) {
  for (int64_t i = reads.begin(); i < reads.end(); ++i) {
    dot_reads<A>(x[i], base, reads.at(i), reads.count(i), width, factor, out.at(reads, i));
  }
}

template <typename A>
void softmax_rows(const ReadsView& reads, const PerRead<A>& p) {
  for (int64_t i = reads.begin(); i < reads.end(); ++i) softmax(p.at(reads, i), reads.count(i));
}

template <typename A>
void softmax_backward(const ReadsView& reads, const PerRead<A>& ps, const PerRead<A>& us, A* mean,
                      const A* factor) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t i = reads.begin(); i < reads.end(); ++i) {
    const int64_t n = reads.count(i);
    A* p = ps.at(reads, i);
    const A* u = us.at(reads, i);
    auto sum = hn::Zero(d);
    for (int64_t c = 0; c < n; c += lanes) {
      sum = hn::MulAdd(hn::Load(d, p + c), load_reads(u, c, n, A{0}), sum);
    }
    const auto center = hn::SumOfLanes(d, sum);
    if (mean) mean[i - reads.begin()] = hn::GetLane(center);
    if (!factor) continue;
    const auto scale = hn::Set(d, factor[i - reads.begin()]);
    for (int64_t c = 0; c < n; c += lanes) {
      const auto change = hn::Mul(scale, hn::Sub(load_reads(u, c, n, A{0}), center));
      hn::Store(hn::Mul(hn::Load(d, p + c), change), d, p + c);
    }
  }
}

template <typename A>
void gather(const ReadsView& reads, const PerRead<A>& w, const A* base, BlockRows<A> out,
            int64_t from, int64_t to) {
  const Tag<A> d;
  for (int64_t i = reads.begin(); i < reads.end(); ++i) {
    A* row = out[i];
    gather_reads(w.at(reads, i), base, reads.at(i), reads.count(i), from, to,
                 [&](int64_t c, Vec<A> sum) HWY_ATTR { hn::StoreU(sum, d, row + c); });
  }
}

template <typename A>
void scatter(const ReadsView& reads, const PerRead<A>& w, BlockRows<const A> x, A* base,
             int64_t from, int64_t to) {
  const Tag<A> d;
  for (int64_t i = reads.end() - 1; i >= reads.begin(); --i) {
    const A* row = x[i];
    scatter_reads(w.at(reads, i), base, reads.at(i), reads.count(i), from, to,
                  [&](int64_t c) HWY_ATTR { return hn::LoadU(d, row + c); });
  }
}

template <typename T>
void copy(const Entering& e, HeadOf<const T> from, RowsAt<Accumulator<T>> to) {
  const Tag<Accumulator<T>> d;
  for (int64_t n = 0; n < e.count; ++n) {
    const int64_t i = e.token(n);
    Accumulator<T>* slot = to[e.slots->of(i)];
    for_each_vector(from[i], from.width,
                    [&](int64_t c, auto x) HWY_ATTR { hn::Store(x, d, slot + c); });
  }
}

template <typename T>
void add(const Entering& e, HeadOf<const T> scale, HeadOf<const T> from,
         RowsAt<Accumulator<T>> to) {
  const Tag<Accumulator<T>> d;
  for (int64_t n = 0; n < e.count; ++n) {
    const int64_t i = e.token(n);
    Accumulator<T>* slot = to[e.slots->of(i)];
    const auto factor = hn::Set(d, static_cast<Accumulator<T>>(*scale[i]));
    for_each_vector(from[i], from.width, [&](int64_t c, auto x) HWY_ATTR {
      hn::Store(hn::MulAdd(factor, x, hn::Load(d, slot + c)), d, slot + c);
    });
  }
}

template <typename A>
void zero(const Entering& e, int64_t width, RowsAt<A> to) {
  const Tag<A> d;
  for (int64_t n = 0; n < e.count; ++n) {
    A* slot = to[e.slots->of(e.token(n))];
    for (int64_t c = 0; c < width; c += hn::Lanes(d)) hn::Store(hn::Zero(d), d, slot + c);
  }
}

template <typename A>
RowLoops<A> loops() {
  return {dots<A>, softmax_rows<A>, softmax_backward<A>, gather<A>, scatter<A>};
}
template <typename T>
EnterLoops<T> entering() {
  return {copy<T>, add<T>, zero<Accumulator<T>>};
}
RowLoops<float> loops_float() { return loops<float>(); }
RowLoops<double> loops_double() { return loops<double>(); }
EnterLoops<float> enter_float() { return entering<float>(); }
EnterLoops<double> enter_double() { return entering<double>(); }
EnterLoops<Bfloat16> enter_bfloat16() { return entering<Bfloat16>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hopmix::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(loops_float);
HWY_EXPORT(loops_double);
HWY_EXPORT(enter_float);
HWY_EXPORT(enter_double);
HWY_EXPORT(enter_bfloat16);

template <>
RowLoops<float> row_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_float)();
}
template <>
RowLoops<double> row_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_double)();
}
template <>
EnterLoops<float> enter_loops() {
  return HWY_DYNAMIC_DISPATCH(enter_float)();
}
template <>
EnterLoops<double> enter_loops() {
  return HWY_DYNAMIC_DISPATCH(enter_double)();
}
template <>
EnterLoops<Bfloat16> enter_loops() {
  return HWY_DYNAMIC_DISPATCH(enter_bfloat16)();
}

}  // namespace hopmix::kernels
#endif
