#include "hopmix/kernels/glr_attention_loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/glr_attention_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hopmix/kernels/row_ops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {

template <typename T>
void enter(const GlrBlock<Accumulator<T>>& b, const GlrEntering<T>& e, const Slots& slots) {
  using A = Accumulator<T>;
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t n = 0; n < e.count; ++n) {
    const int64_t i = e.tokens ? e.tokens[n] : e.first + n, slot = slots.of(i);
    A* k = b.k[slot];
    for_each_vector(e.k[i], e.k.width,
                    [&](int64_t c, Vec<A> x) HWY_ATTR { hn::Store(x, d, k + c); });
    if (!e.y) continue;
    A *z = b.z[slot], *later = b.later[slot], *dk = b.dk[slot];
    const auto direct = hn::Set(d, static_cast<A>(*e.d[i]));
    for_each_vector(e.y[i], e.y.width,
                    [&](int64_t c, Vec<A> x) HWY_ATTR { hn::Store(x, d, z + c); });
    for_each_vector(e.v[i], e.v.width, [&](int64_t c, Vec<A> x) HWY_ATTR {
      hn::Store(hn::MulAdd(direct, x, hn::Load(d, z + c)), d, z + c);
    });
    for (int64_t c = 0; c < b.value_width; c += lanes) hn::Store(hn::Zero(d), d, later + c);
    for (int64_t c = 0; c < b.key_width; c += lanes) hn::Store(hn::Zero(d), d, dk + c);
  }
}

template <typename A>
void softmax_rows(const GlrBlock<A>& b, GlrReads<A>& r) {
  for (int64_t i = r.reads.begin(); i < r.reads.end(); ++i) {
    dot_reads<A>(b.q[i - b.first], b.k.data, r.reads.at(i), r.reads.count(i), b.key_width, b.scale,
                 r.p.at(r.reads, i));
  }
  for (int64_t i = r.reads.begin(); i < r.reads.end(); ++i) {
    softmax(r.p.at(r.reads, i), r.reads.count(i));
  }
}

template <typename A>
void solve(const GlrBlock<A>& b, const GlrReads<A>& r, const Slots& slots, int64_t from,
           int64_t to) {
  const Tag<A> d;
  for (int64_t i = r.reads.begin(); i < r.reads.end(); ++i) {
    const int64_t row = i - b.first;
    const A* v = b.v[row];
    A *z = b.z[slots.of(i)], *y = b.y[row];
    const auto gate = hn::Set(d, b.gate[row]), direct = hn::Set(d, b.d[row]),
               own = hn::Set(d, b.d[row] + b.d_self[row]);
    gather_reads(r.p.at(r.reads, i), b.z.data, r.reads.at(i), r.reads.count(i), from, to,
                 [&](int64_t c, Vec<A> sum) HWY_ATTR {
                   const auto value = hn::LoadU(d, v + c);
                   const auto state = hn::MulAdd(gate, sum, hn::Mul(own, value));
                   hn::Store(state, d, z + c);
                   hn::StoreU(hn::NegMulAdd(direct, value, state), d, y + c);
                 });
  }
}

template <typename A>
void solve_transposed(const GlrBlock<A>& b, const GlrReads<A>& r, const Slots& slots, int64_t from,
                      int64_t to) {
  const Tag<A> d;
  for (int64_t i = r.reads.end() - 1; i >= r.reads.begin(); --i) {
    const int64_t row = i - b.first;
    const A *g = b.grad_y[row], *later = b.later[slots.of(i)];
    A *total = b.total[row], *dv = b.want_dv ? b.dv[row] : nullptr;
    const auto gate = hn::Set(d, b.gate[row]), direct = hn::Set(d, b.d[row]),
               own = hn::Set(d, b.d_self[row]);
    scatter_reads(r.p.at(r.reads, i), b.later.data, r.reads.at(i), r.reads.count(i), from, to,
                  [&](int64_t c) HWY_ATTR {
                    const auto back = hn::Load(d, later + c);
                    const auto all = hn::Add(hn::LoadU(d, g + c), back);
                    hn::Store(all, d, total + c);
                    if (dv) hn::StoreU(hn::MulAdd(direct, back, hn::Mul(own, all)), d, dv + c);
                    return hn::Mul(gate, all);
                  });
  }
}

// One loop a step: a row's dot products are stored long before they are loaded as vectors.
template <typename A>
void row_gradients(const GlrBlock<A>& b, GlrReads<A>& r, const Slots& slots) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d), begin = r.reads.begin(), end = r.reads.end();
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i - b.first;
    const A *total = b.total[row], *v = b.v[row];
    if (b.dd) b.dd[row] = dot<A>(b.later[slots.of(i)], v, b.value_width);
    if (b.dd_self) b.dd_self[row] = dot<A>(total, v, b.value_width);
    if (b.dgate || b.want_logits) {
      dot_reads<A>(total, b.z.data, r.reads.at(i), r.reads.count(i), b.value_width, A{1},
                   r.u.at(r.reads, i));
    }
  }
  if (!b.dgate && !b.want_logits) return;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = i - b.first, n = r.reads.count(i);
    A *p = r.p.at(r.reads, i), *u = r.u.at(r.reads, i);
    auto sum = hn::Zero(d);
    for (int64_t c = 0; c < n; c += lanes) {
      sum = hn::MulAdd(hn::Load(d, p + c), load_reads(u, c, n, A{0}), sum);
    }
    const auto mean = hn::SumOfLanes(d, sum);
    if (b.dgate) b.dgate[row] = hn::GetLane(mean);
    const auto factor = hn::Set(d, b.scale * b.gate[row]);
    for (int64_t c = 0; c < n; c += lanes) {
      const auto change = hn::Mul(factor, hn::Sub(load_reads(u, c, n, A{0}), mean));
      hn::Store(hn::Mul(hn::Load(d, p + c), change), d, p + c);
    }
  }
  if (!b.want_dq) return;
  for (int64_t i = begin; i < end; ++i) {
    A* dq = b.dq[i - b.first];
    gather_reads(r.p.at(r.reads, i), b.k.data, r.reads.at(i), r.reads.count(i), 0, b.key_width,
                 [&](int64_t c, Vec<A> sum) HWY_ATTR { hn::StoreU(sum, d, dq + c); });
  }
}

template <typename A>
void key_gradients(const GlrBlock<A>& b, const GlrReads<A>& r, int64_t from, int64_t to) {
  const Tag<A> d;
  for (int64_t i = r.reads.end() - 1; i >= r.reads.begin(); --i) {
    const A* q = b.q[i - b.first];
    scatter_reads(r.p.at(r.reads, i), b.dk.data, r.reads.at(i), r.reads.count(i), from, to,
                  [&](int64_t c) HWY_ATTR { return hn::LoadU(d, q + c); });
  }
}

template <typename A>
GlrLoops<A> loops() {
  return {softmax_rows<A>, solve<A>, solve_transposed<A>, row_gradients<A>, key_gradients<A>};
}
GlrLoops<float> float_loops() { return loops<float>(); }
GlrLoops<double> double_loops() { return loops<double>(); }
GlrEnter<float> enter_float() { return enter<float>; }
GlrEnter<double> enter_double() { return enter<double>; }
GlrEnter<Bfloat16> enter_bfloat16() { return enter<Bfloat16>; }

}  // namespace HWY_NAMESPACE
}  // namespace hopmix::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(float_loops);
HWY_EXPORT(double_loops);
HWY_EXPORT(enter_float);
HWY_EXPORT(enter_double);
HWY_EXPORT(enter_bfloat16);

template <>
GlrLoops<float> glr_loops() {
  return HWY_DYNAMIC_DISPATCH(float_loops)();
}
template <>
GlrLoops<double> glr_loops() {
  return HWY_DYNAMIC_DISPATCH(double_loops)();
}
template <>
GlrEnter<float> glr_enter() {
  return HWY_DYNAMIC_DISPATCH(enter_float)();
}
template <>
GlrEnter<double> glr_enter() {
  return HWY_DYNAMIC_DISPATCH(enter_double)();
}
template <>
GlrEnter<Bfloat16> glr_enter() {
  return HWY_DYNAMIC_DISPATCH(enter_bfloat16)();
}

}  // namespace hopmix::kernels
#endif
