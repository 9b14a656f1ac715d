#include "hopmix/kernels/rows/glr_loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/rows/glr_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hopmix/kernels/rows/row_ops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {
namespace {

template <typename A>
void solve(const GlrBlock<A>& b, const GlrReads<A>& r, const Slots& slots, int64_t from,
           int64_t to) {
  const Tag<A> d;
  for (int64_t i = r.reads.begin(); i < r.reads.end(); ++i) {
    const A *x = b.x[slots.of(i)], *direct = b.direct[i];
    A *y = b.y[slots.of(i)], *out = b.out[i];
    const auto own = hn::Set(d, b.alpha_diag[i - b.first]);
    gather_reads(r.beta.at(r.reads, i), b.y.data, r.reads.at(i), r.reads.count(i), from, to,
                 [&](int64_t c, Vec<A> sum) HWY_ATTR {
                   const auto inputs = hn::MulAdd(own, hn::Load(d, x + c), hn::Load(d, direct + c));
                   const auto all = hn::Add(inputs, sum);
                   hn::Store(all, d, y + c);
                   hn::StoreU(all, d, out + c);
                 });
  }
}

template <typename A>
void solve_transposed(const GlrBlock<A>& b, const GlrReads<A>& r, const Slots& slots, int64_t from,
                      int64_t to) {
  const Tag<A> d;
  for (int64_t i = r.reads.end() - 1; i >= r.reads.begin(); --i) {
    const A *g = b.grad_y[i], *dy_from_readers = b.dy_from_readers[slots.of(i)];
    A* lambda = b.lambda[i];
    scatter_reads(r.beta.at(r.reads, i), b.dy_from_readers.data, r.reads.at(i), r.reads.count(i),
                  from, to, [&](int64_t c) HWY_ATTR {
                    const auto all = hn::Add(hn::LoadU(d, g + c), hn::Load(d, dy_from_readers + c));
                    hn::Store(all, d, lambda + c);
                    return all;
                  });
  }
}

template <typename A>
void input_gradients(const GlrBlock<A>& b, const GlrReads<A>& r, const Slots& slots, int64_t from,
                     int64_t to) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t i = r.reads.end() - 1; i >= r.reads.begin(); --i) {
    const A* lambda = b.lambda[i];
    A* dx = b.dx[slots.of(i)];
    const auto own = hn::Set(d, b.alpha_diag[i - b.first]);
    for (int64_t c = from; c < to; c += lanes) {
      hn::Store(hn::MulAdd(own, hn::Load(d, lambda + c), hn::Load(d, dx + c)), d, dx + c);
    }
    scatter_reads(r.alpha.at(r.reads, i), b.dx.data, r.reads.at(i), r.reads.count(i), from, to,
                  [&](int64_t c) HWY_ATTR { return hn::Load(d, lambda + c); });
  }
}

template <typename A>
void diagonal_gradients(const GlrBlock<A>& b, const Slots& slots, int64_t begin, int64_t end,
                        int64_t width, A* out) {
  for (int64_t i = begin; i < end; ++i) {
    out[i - begin] = dot<A>(b.lambda[i], b.x[slots.of(i)], width);
  }
}

template <typename A>
GlrLoops<A> loops() {
  return {solve<A>, solve_transposed<A>, input_gradients<A>, diagonal_gradients<A>};
}
GlrLoops<float> loops_float() { return loops<float>(); }
GlrLoops<double> loops_double() { return loops<double>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hopmix::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(loops_float);
HWY_EXPORT(loops_double);

template <>
GlrLoops<float> glr_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_float)();
}
template <>
GlrLoops<double> glr_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_double)();
}

}  // namespace hopmix::kernels
#endif
