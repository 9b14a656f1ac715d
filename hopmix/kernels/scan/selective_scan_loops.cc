#include "hopmix/kernels/scan/selective_scan_loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/scan/selective_scan_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hopmix/kernels/base/exp-inl.h"
#include "hopmix/kernels/rows/row_ops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {
namespace {

// Channels of a token as kPad sums, zeros behind the last.
template <typename T>
HWY_INLINE void stage(const T* from, int64_t channels, Accumulator<T>* to) {
  using A = Accumulator<T>;
  if (channels == kPad) {
    for (int64_t c = 0; c < kPad; c += hn::Lanes(Tag<A>())) {
      hn::Store(load_as(from + c), Tag<A>(), to + c);
    }
  } else {
    for (int64_t c = 0; c < kPad; ++c) to[c] = c < channels ? static_cast<A>(from[c]) : A{0};
  }
}

// The reverse.
template <typename T>
HWY_INLINE void unstage(const Accumulator<T>* from, int64_t channels, T* to) {
  using A = Accumulator<T>;
  if (channels == kPad) {
    for (int64_t c = 0; c < kPad; c += hn::Lanes(Tag<A>())) {
      store_as(hn::Load(Tag<A>(), from + c), to + c);
    }
  } else {
    for (int64_t c = 0; c < channels; ++c) to[c] = static_cast<T>(from[c]);
  }
}

// delta and x = delta u of the piece.
template <typename T>
HWY_INLINE void stage_inputs(const ScanPiece<T>& p, const ScanScratch<Accumulator<T>>& s) {
  using A = Accumulator<T>;
  const Tag<A> d;
  for (int64_t t = 0; t < p.length; ++t) {
    A *delta = s.delta() + t * kPad, *x = s.x() + t * kPad;
    stage(p.delta + t * p.stride, p.channels, delta);
    stage(p.u + t * p.stride, p.channels, x);
    for (int64_t c = 0; c < kPad; c += hn::Lanes(d)) {
      hn::Store(hn::Mul(hn::Load(d, x + c), hn::Load(d, delta + c)), d, x + c);
    }
  }
}

// Runs states n ... n + kCount - 1 of the vector of channels at c from `h` through the piece;
// visit(t, decays, h_t).
template <int64_t kCount, typename T, typename Visit>
HWY_INLINE void run_states(const ScanPiece<T>& p, const ScanScratch<Accumulator<T>>& s, int64_t n,
                           int64_t c, Vec<Accumulator<T>>* h, const Visit& visit) {
  using A = Accumulator<T>;
  const Tag<A> d;
  Vec<A> a[kCount], decay[kCount];
  for (int64_t i = 0; i < kCount; ++i) a[i] = hn::Load(d, p.a + (n + i) * kPad + c);
  const A* b = p.b + n;
  for (int64_t t = 0; t < p.length; ++t, b += p.states) {
    const auto delta = hn::Load(d, s.delta() + t * kPad + c);
    const auto x = hn::Load(d, s.x() + t * kPad + c);
    for (int64_t i = 0; i < kCount; ++i) {
      decay[i] = exp_of(hn::Mul(delta, a[i]));
      h[i] = hn::MulAdd(decay[i], h[i], hn::Mul(x, hn::Set(d, b[i])));
    }
    visit(t, decay, h);
  }
}

template <int64_t kCount, typename T>
HWY_INLINE void forward_states(const ScanPiece<T>& p, const ScanScratch<Accumulator<T>>& s,
                               int64_t n, int64_t c) {
  using A = Accumulator<T>;
  const Tag<A> d;
  Vec<A> h[kCount];
  for (int64_t i = 0; i < kCount; ++i) h[i] = hn::Load(d, p.h + (n + i) * kPad + c);
  run_states<kCount>(p, s, n, c, h, [&](int64_t t, const Vec<A>*, const Vec<A>* now) HWY_ATTR {
    const A* weight = p.c + t * p.states + n;
    A* y = s.y() + t * kPad + c;
    auto sum = hn::Load(d, y);
    for (int64_t i = 0; i < kCount; ++i) sum = hn::MulAdd(now[i], hn::Set(d, weight[i]), sum);
    hn::Store(sum, d, y);
  });
  for (int64_t i = 0; i < kCount; ++i) hn::Store(h[i], d, p.h + (n + i) * kPad + c);
}

template <typename T>
void forward(const ScanPiece<T>& p, const ScanScratch<Accumulator<T>>& s, T* y) {
  using A = Accumulator<T>;
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  stage_inputs(p, s);
  for (int64_t t = 0; t < p.length; ++t) {
    A* sum = s.y() + t * kPad;
    stage(p.u + t * p.stride, p.channels, sum);
    for (int64_t c = 0; c < kPad; c += lanes) {
      hn::Store(hn::Mul(hn::Load(d, sum + c), hn::Load(d, p.d + c)), d, sum + c);
    }
  }
  for (int64_t c = 0; c < kPad; c += lanes) {
    int64_t n = 0;
    for (; n + 2 <= p.states; n += 2) forward_states<2>(p, s, n, c);
    if (n < p.states) forward_states<1>(p, s, n, c);
  }
  for (int64_t t = 0; t < p.length; ++t) unstage(s.y() + t * kPad, p.channels, y + t * p.stride);
}

// sums[t] = the sum of the lanes of row t, which are rows of kPad; added to what is there if asked.
template <typename A>
HWY_INLINE void sum_lanes(const A* rows, int64_t length, bool add, A* sums) {
  const Tag<A> d;
  HWY_ALIGN A four[4];
  for (int64_t t = 0; t < length; t += 4) {
    const auto row = [&](int64_t i)
                         HWY_ATTR { return hn::Load(d, rows + HWY_MIN(t + i, length - 1) * kPad); };
    store_sums<A>(row(0), row(1), row(2), row(3), A{1}, four);
    for (int64_t i = 0; i < HWY_MIN(length - t, 4); ++i) {
      sums[t + i] = add ? sums[t + i] + four[i] : four[i];
    }
  }
}

template <int64_t kCount, typename T>
HWY_INLINE void backward_states(const ScanPiece<T>& p, const ScanScratch<Accumulator<T>>& s,
                                const ScanPieceGradients<T>& g, int64_t n, int64_t c) {
  using A = Accumulator<T>;
  const Tag<A> d;
  Vec<A> h[kCount], first[kCount], a[kCount], da[kCount], carried[kCount];
  for (int64_t i = 0; i < kCount; ++i) {
    const int64_t at = (n + i) * kPad + c;
    h[i] = first[i] = hn::Load(d, p.h + at);
    a[i] = hn::Load(d, p.a + at);
    da[i] = hn::Zero(d);
    carried[i] = hn::Load(d, g.carried + at);
  }
  run_states<kCount>(p, s, n, c, h,
                     [&](int64_t t, const Vec<A>* decay, const Vec<A>* now) HWY_ATTR {
                       for (int64_t i = 0; i < kCount; ++i) {
                         hn::Store(decay[i], d, s.decays(i) + t * kPad);
                         hn::Store(now[i], d, s.h(i) + t * kPad);
                       }
                     });
  // What is needed of a decay and a state is read before the products for dB and dC take its place.
  for (int64_t t = p.length - 1; t >= 0; --t) {
    const int64_t at = t * kPad + c;
    const A *b = p.b + t * p.states + n, *weight = p.c + t * p.states + n;
    const auto dy = hn::Load(d, s.grad_y() + at), x = hn::Load(d, s.x() + at);
    const auto delta = hn::Load(d, s.delta() + at);
    auto dx = hn::Load(d, s.grad_x() + at), ddelta = hn::Load(d, s.grad_delta() + at);
    for (int64_t i = 0; i < kCount; ++i) {
      A *const decay_at = s.decays(i) + t * kPad, *const h_at = s.h(i) + t * kPad;
      const auto decay = hn::Load(d, decay_at);
      const auto before = t == 0 ? first[i] : hn::Load(d, h_at - kPad);
      const auto dh = hn::MulAdd(dy, hn::Set(d, weight[i]), carried[i]);
      hn::Store(hn::Mul(dy, hn::Load(d, h_at)), d, h_at);
      hn::Store(hn::Mul(dh, x), d, decay_at);
      dx = hn::MulAdd(dh, hn::Set(d, b[i]), dx);
      carried[i] = hn::Mul(dh, decay);
      const auto d_exponent = hn::Mul(carried[i], before);
      ddelta = hn::MulAdd(d_exponent, a[i], ddelta);
      da[i] = hn::MulAdd(d_exponent, delta, da[i]);
    }
    hn::Store(dx, d, s.grad_x() + at);
    hn::Store(ddelta, d, s.grad_delta() + at);
  }
  for (int64_t i = 0; i < kCount; ++i) {
    const int64_t at = (n + i) * kPad + c;
    hn::Store(hn::Add(hn::Load(d, g.a + at), da[i]), d, g.a + at);
    hn::Store(carried[i], d, g.carried + at);
    if (g.b) sum_lanes(s.decays(i), p.length, c > 0, g.b + (n + i) * kScanPiece);
    if (g.c) sum_lanes(s.h(i), p.length, c > 0, g.c + (n + i) * kScanPiece);
  }
}

// du = D grad_y + delta dx and ddelta = u dx + what came through the decays, dx = dLoss/d(delta u).
template <typename T>
HWY_INLINE void input_gradients(const ScanPiece<T>& p, const ScanScratch<Accumulator<T>>& s,
                                const ScanPieceGradients<T>& g) {
  using A = Accumulator<T>;
  const Tag<A> d;
  HWY_ALIGN A u[kPad], dd[kPad] = {};
  for (int64_t t = 0; t < p.length; ++t) {
    stage(p.u + t * p.stride, p.channels, u);
    A *const dx_at = s.grad_x() + t * kPad, *const ddelta_at = s.grad_delta() + t * kPad;
    for (int64_t c = 0; c < kPad; c += hn::Lanes(d)) {
      const auto dy = hn::Load(d, s.grad_y() + t * kPad + c), dx = hn::Load(d, dx_at + c);
      const auto delta = hn::Load(d, s.delta() + t * kPad + c), value = hn::Load(d, u + c);
      hn::Store(hn::MulAdd(dy, value, hn::Load(d, dd + c)), d, dd + c);
      hn::Store(hn::MulAdd(dy, hn::Load(d, p.d + c), hn::Mul(delta, dx)), d, dx_at + c);
      hn::Store(hn::MulAdd(value, dx, hn::Load(d, ddelta_at + c)), d, ddelta_at + c);
    }
    if (g.u) unstage(dx_at, p.channels, g.u + t * p.stride);
    if (g.delta) unstage(ddelta_at, p.channels, g.delta + t * p.stride);
  }
  for (int64_t c = 0; c < kPad; ++c) g.d[c] += dd[c];
}

template <typename T>
void backward(const ScanPiece<T>& p, const ScanScratch<Accumulator<T>>& s,
              const ScanPieceGradients<T>& g) {
  using A = Accumulator<T>;
  const Tag<A> d;
  stage_inputs(p, s);
  for (int64_t t = 0; t < p.length; ++t) {
    for (int64_t c = 0; c < kPad; c += hn::Lanes(d)) {
      hn::Store(hn::Zero(d), d, s.grad_y() + t * kPad + c);
      hn::Store(hn::Zero(d), d, s.grad_x() + t * kPad + c);
      hn::Store(hn::Zero(d), d, s.grad_delta() + t * kPad + c);
    }
    if (g.grad_y) stage(g.grad_y + t * p.stride, p.channels, s.grad_y() + t * kPad);
  }
  for (int64_t c = 0; c < kPad; c += hn::Lanes(d)) {
    int64_t n = 0;
    for (; n + 2 <= p.states; n += 2) backward_states<2>(p, s, g, n, c);
    if (n < p.states) backward_states<1>(p, s, g, n, c);
  }
  input_gradients(p, s, g);
}

template <typename T>
SelectiveScanLoops<T> loops() {
  return {forward<T>, backward<T>};
}
SelectiveScanLoops<float> loops_float() { return loops<float>(); }
SelectiveScanLoops<double> loops_double() { return loops<double>(); }
SelectiveScanLoops<Bfloat16> loops_bfloat16() { return loops<Bfloat16>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hopmix::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(loops_float);
HWY_EXPORT(loops_double);
HWY_EXPORT(loops_bfloat16);

template <>
SelectiveScanLoops<float> selective_scan_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_float)();
}
template <>
SelectiveScanLoops<double> selective_scan_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_double)();
}
template <>
SelectiveScanLoops<Bfloat16> selective_scan_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_bfloat16)();
}

}  // namespace hopmix::kernels
#endif
