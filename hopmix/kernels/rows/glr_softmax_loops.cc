#include "hopmix/kernels/rows/glr_softmax_loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/rows/glr_softmax_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hopmix/kernels/rows/row_ops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {
namespace {

template <typename A>
inline constexpr A kNone = -std::numeric_limits<A>::infinity();

template <typename A>
void weigh(const JointBlock<A>& b, const JointReads<A>& r) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t i = r.reads.begin(); i < r.reads.end(); ++i) {
    const int64_t n = r.reads.count(i), end = padded(n);
    const int32_t* slots = r.reads.slots(i);
    A *direct = r.direct.at(r.reads, i), *recurrent = r.recurrent.at(r.reads, i);
    const A own = b.d_self[i - b.first];
    const auto gate = hn::Set(d, b.gate_on_read ? A{0} : b.g[i - b.first]);
    auto most = hn::Set(d, own);
    for (int64_t c = 0; c < n; c += lanes) {
      const auto score = hn::Load(d, direct + c);
      const auto d_read = gather_slots(b.d, slots + c);
      const auto g_read = b.gate_on_read ? gather_slots(b.g, slots + c) : gate;
      // Only now: behind the end of a row may be anything.
      const auto x = first_reads<A>(hn::Add(score, d_read), c, n, kNone<A>);
      const auto y = first_reads<A>(hn::Add(score, g_read), c, n, kNone<A>);
      hn::Store(x, d, direct + c);
      hn::Store(y, d, recurrent + c);
      most = hn::Max(most, hn::Max(x, y));
    }
    A largest = hn::GetLane(hn::MaxOfLanes(d, most));
    if (largest == kNone<A>) largest = 0;  // every term is absent: any finite shift will do
    const auto shift = hn::Set(d, largest);
    auto sum = hn::Zero(d);
    for (int64_t c = 0; c < end; c += lanes) {
      const auto x = exp_of(hn::Sub(load_reads(direct, c, n, kNone<A>), shift));
      const auto y = exp_of(hn::Sub(load_reads(recurrent, c, n, kNone<A>), shift));
      hn::Store(x, d, direct + c);
      hn::Store(y, d, recurrent + c);
      sum = hn::Add(sum, hn::Add(x, y));
    }
    const A self = hn::GetLane(exp_of(hn::Set(d, own - largest)));
    const A total = self + hn::GetLane(hn::SumOfLanes(d, sum));
    const A inverse = total == 0 ? 0 : 1 / total;
    b.self[i - b.first] = self * inverse;
    const auto factor = hn::Set(d, inverse);
    for (int64_t c = 0; c < end; c += lanes) {
      hn::Store(hn::Mul(hn::Load(d, direct + c), factor), d, direct + c);
      hn::Store(hn::Mul(hn::Load(d, recurrent + c), factor), d, recurrent + c);
    }
  }
}

template <typename A>
void solve(const JointBlock<A>& b, const JointReads<A>& r, const Slots& slots, int64_t from,
           int64_t to) {
  const Tag<A> d;
  for (int64_t i = r.reads.begin(); i < r.reads.end(); ++i) {
    const int64_t n = r.reads.count(i);
    const A* v = b.v[slots.of(i)];
    A *y = b.y[slots.of(i)], *out = b.out[i];
    const auto self = hn::Set(d, b.self[i - b.first]);
    gather_two_reads(r.direct.at(r.reads, i), b.v.data, r.recurrent.at(r.reads, i), b.y.data,
                     r.reads.at(i), n, from, to, [&](int64_t c, Vec<A> sum) HWY_ATTR {
                       const auto all = hn::MulAdd(self, hn::Load(d, v + c), sum);
                       hn::Store(all, d, y + c);
                       hn::StoreU(all, d, out + c);
                     });
  }
}

template <typename A>
void solve_transposed(const JointBlock<A>& b, const JointReads<A>& r, const Slots& slots,
                      int64_t from, int64_t to) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t i = r.reads.end() - 1; i >= r.reads.begin(); --i) {
    const int64_t n = r.reads.count(i), slot = slots.of(i);
    const A *g = b.grad_y[i], *dy_from_readers = b.dy_from_readers[slot];
    A *lambda = b.lambda[i], *dv = b.dv[slot];
    scatter_reads(r.recurrent.at(r.reads, i), b.dy_from_readers.data, r.reads.at(i), n, from, to,
                  [&](int64_t c) HWY_ATTR {
                    const auto all = hn::Add(hn::LoadU(d, g + c), hn::Load(d, dy_from_readers + c));
                    hn::Store(all, d, lambda + c);
                    return all;
                  });
    const auto self = hn::Set(d, b.self[i - b.first]);
    for (int64_t c = from; c < to; c += lanes) {
      hn::Store(hn::MulAdd(self, hn::Load(d, lambda + c), hn::Load(d, dv + c)), d, dv + c);
    }
    scatter_reads(r.direct.at(r.reads, i), b.dv.data, r.reads.at(i), n, from, to,
                  [&](int64_t c) HWY_ATTR { return hn::Load(d, lambda + c); });
  }
}

template <typename A>
void d_logits(const JointBlock<A>& b, const JointReads<A>& r, const Slots& slots, int64_t width) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  const auto scale = hn::Set(d, b.scale);
  for (int64_t i = r.reads.begin(); i < r.reads.end(); ++i) {
    const int64_t n = r.reads.count(i), row = i - b.first;
    A *direct = r.direct.at(r.reads, i), *recurrent = r.recurrent.at(r.reads, i);
    A *d_direct = r.d_direct.at(r.reads, i), *d_recurrent = r.d_recurrent.at(r.reads, i);
    const A own = dot<A>(b.lambda[i], b.v[slots.of(i)], width);
    auto sum = hn::Zero(d);
    for (int64_t c = 0; c < n; c += lanes) {
      sum = hn::MulAdd(hn::Load(d, direct + c), load_reads(d_direct, c, n, A{0}), sum);
      sum = hn::MulAdd(hn::Load(d, recurrent + c), load_reads(d_recurrent, c, n, A{0}), sum);
    }
    const A center = b.self[row] * own + hn::GetLane(hn::SumOfLanes(d, sum));
    b.dd_self[row] = b.self[row] * (own - center);
    const auto mean = hn::Set(d, center);
    auto gate = hn::Zero(d);
    for (int64_t c = 0; c < n; c += lanes) {
      const auto x =
          hn::Mul(hn::Load(d, direct + c), hn::Sub(load_reads(d_direct, c, n, A{0}), mean));
      const auto y =
          hn::Mul(hn::Load(d, recurrent + c), hn::Sub(load_reads(d_recurrent, c, n, A{0}), mean));
      gate = hn::Add(gate, y);
      hn::Store(x, d, d_direct + c);
      hn::Store(y, d, d_recurrent + c);
      hn::Store(hn::Mul(scale, hn::Add(x, y)), d, direct + c);
    }
    if (!b.gate_on_read) b.dg[row] = hn::GetLane(hn::SumOfLanes(d, gate));
  }
}

template <typename A>
JointLoops<A> loops() {
  return {weigh<A>, solve<A>, solve_transposed<A>, d_logits<A>};
}
JointLoops<float> loops_float() { return loops<float>(); }
JointLoops<double> loops_double() { return loops<double>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hopmix::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(loops_float);
HWY_EXPORT(loops_double);

template <>
JointLoops<float> joint_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_float)();
}
template <>
JointLoops<double> joint_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_double)();
}

}  // namespace hopmix::kernels
#endif
