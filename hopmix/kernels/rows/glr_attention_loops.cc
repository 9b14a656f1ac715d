#include "hopmix/kernels/rows/glr_attention_loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/rows/glr_attention_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hopmix/kernels/rows/row_ops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {
namespace {

template <typename A>
void solve(const GlrAttentionBlock<A>& b, const Reads& reads, const PerRead<A>& p,
           const Slots& slots, int64_t from, int64_t to) {
  const Tag<A> d;
  for (int64_t i = reads.begin(); i < reads.end(); ++i) {
    const int64_t row = i - b.first;
    const A* v = b.v[i];
    A *z = b.z[slots.of(i)], *y = b.y[i];
    const auto gate = hn::Set(d, b.gate[row]), direct = hn::Set(d, b.d[row]),
               own = hn::Set(d, b.d[row] + b.d_self[row]);
    gather_reads(p.at(reads, i), b.z.data, reads.at(i), reads.count(i), from, to,
                 [&](int64_t c, Vec<A> sum) HWY_ATTR {
                   const auto value = hn::LoadU(d, v + c);
                   const auto state = hn::MulAdd(gate, sum, hn::Mul(own, value));
                   hn::Store(state, d, z + c);
                   hn::StoreU(hn::NegMulAdd(direct, value, state), d, y + c);
                 });
  }
}

template <typename A>
void solve_transposed(const GlrAttentionBlock<A>& b, const Reads& reads, const PerRead<A>& p,
                      const Slots& slots, int64_t from, int64_t to) {
  const Tag<A> d;
  for (int64_t i = reads.end() - 1; i >= reads.begin(); --i) {
    const int64_t row = i - b.first;
    const A *g = b.grad_y[i], *dz_from_readers = b.dz_from_readers[slots.of(i)];
    A *dz = b.dz[i], *dv = b.want_dv ? b.dv[i] : nullptr;
    const auto gate = hn::Set(d, b.gate[row]), direct = hn::Set(d, b.d[row]),
               own = hn::Set(d, b.d_self[row]);
    scatter_reads(p.at(reads, i), b.dz_from_readers.data, reads.at(i), reads.count(i), from, to,
                  [&](int64_t c) HWY_ATTR {
                    const auto back = hn::Load(d, dz_from_readers + c);
                    const auto all = hn::Add(hn::LoadU(d, g + c), back);
                    hn::Store(all, d, dz + c);
                    if (dv) hn::StoreU(hn::MulAdd(direct, back, hn::Mul(own, all)), d, dv + c);
                    return hn::Mul(gate, all);
                  });
  }
}

template <typename A>
void gate_gradients(const GlrAttentionBlock<A>& b, const Slots& slots, int64_t begin, int64_t end,
                    int64_t width) {
  for (int64_t i = begin; i < end; ++i) {
    if (b.dd) b.dd[i - b.first] = dot<A>(b.dz_from_readers[slots.of(i)], b.v[i], width);
    if (b.dd_self) b.dd_self[i - b.first] = dot<A>(b.dz[i], b.v[i], width);
  }
}

template <typename A>
GlrAttentionLoops<A> loops() {
  return {solve<A>, solve_transposed<A>, gate_gradients<A>};
}
GlrAttentionLoops<float> loops_float() { return loops<float>(); }
GlrAttentionLoops<double> loops_double() { return loops<double>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hopmix::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(loops_float);
HWY_EXPORT(loops_double);

template <>
GlrAttentionLoops<float> glr_attention_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_float)();
}
template <>
GlrAttentionLoops<double> glr_attention_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_double)();
}

}  // namespace hopmix::kernels
#endif
