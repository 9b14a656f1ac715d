// The inner loops of the kernels: sums over the slots that one row reads. Included once for each
// instruction set; `base` are rows of a slot buffer, padded (padded.h), so there are no tails.
#if defined(HOPMIX_KERNELS_ROW_OPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HOPMIX_KERNELS_ROW_OPS_INL_H_
#undef HOPMIX_KERNELS_ROW_OPS_INL_H_
#else
#define HOPMIX_KERNELS_ROW_OPS_INL_H_
#endif

#include <cstdint>
#include <limits>
#include <type_traits>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/exp-inl.h"
#include "hopmix/kernels/base/padded.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels::HWY_NAMESPACE {

/// Vectors of one row that are summed at once: four sums of each must fit in the registers.
inline constexpr int64_t kVectors = HWY_TARGET == HWY_AVX3 ? 4 : 2;

/// Vector of what is stored at p.
template <typename T>
HWY_INLINE Vec<T> load_as(const T* p) {
  return hn::LoadU(Tag<T>(), p);
}
HWY_INLINE Vec<float> load_as(const Bfloat16* p) {
  const Tag<float> d;
  const hn::RebindToUnsigned<decltype(d)> bits;
  const hn::Rebind<uint16_t, decltype(d)> half;
  const auto upper = hn::LoadU(half, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(bits, upper)));
}

/// The bits of each number rounded to bfloat16, in the lower half of a word.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<Tag<float>>> rounded_bits(Vec<float> x) {
  const hn::RebindToUnsigned<Tag<float>> bits;
  const auto word = hn::BitCast(bits, x);
  const auto upper = hn::ShiftRight<16>(word);
  const auto odd = hn::And(upper, hn::Set(bits, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(word, hn::Set(bits, 0x7fff)), odd));
  const auto quiet = hn::Or(upper, hn::Set(bits, 0x40));
  return hn::IfThenElse(hn::RebindMask(bits, hn::IsNaN(x)), quiet, rounded);
}

/// Stores a vector as T, rounded to nearest even as Bfloat16's constructor does.
template <typename T>
HWY_INLINE void store_as(Vec<T> x, T* p) {
  hn::StoreU(x, Tag<T>(), p);
}
HWY_INLINE void store_as(Vec<float> x, Bfloat16* p) {
  const hn::Rebind<uint16_t, Tag<float>> half;
  hn::StoreU(hn::TruncateTo(half, rounded_bits(x)), half, reinterpret_cast<uint16_t*>(p));
}

/// store(c, row at c ...) for each vector of a row of `width` numbers, the last one filled with
/// zeros up to the next multiple of kPad.
template <typename T, typename Store>
HWY_INLINE void for_each_vector(const T* HWY_RESTRICT row, int64_t width, const Store& store) {
  using A = Accumulator<T>;
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  int64_t c = 0;
  for (; c + lanes <= width; c += lanes) store(c, load_as(row + c));
  if (c == padded(width)) return;
  HWY_ALIGN A rest[2 * kPad] = {};
  for (int64_t i = c; i < width; ++i) rest[i - c] = static_cast<A>(row[i]);
  for (const int64_t from = c; c < padded(width); c += lanes) {
    store(c, hn::Load(d, rest + (c - from)));
  }
}

/// out = factor times the sum of each of four vectors, in their order.
template <typename A>
HWY_INLINE void store_sums(Vec<A> a, Vec<A> b, Vec<A> c, Vec<A> e, A factor, A* HWY_RESTRICT out) {
  const Tag<A> d;
  out[0] = factor * hn::GetLane(hn::SumOfLanes(d, a));
  out[1] = factor * hn::GetLane(hn::SumOfLanes(d, b));
  out[2] = factor * hn::GetLane(hn::SumOfLanes(d, c));
  out[3] = factor * hn::GetLane(hn::SumOfLanes(d, e));
}

#if HWY_TARGET != HWY_SCALAR
// Transposing shares the additions.
template <>
HWY_INLINE void store_sums<float>(Vec<float> a, Vec<float> b, Vec<float> c, Vec<float> e,
                                  float factor, float* HWY_RESTRICT out) {
  const Tag<float> d;
  const hn::Repartition<double, decltype(d)> pairs;
  const auto ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const auto ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto ab2 = hn::BitCast(pairs, ab), ce2 = hn::BitCast(pairs, ce);
  auto sums = hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, ab2, ce2)),
                      hn::BitCast(d, hn::InterleaveUpper(pairs, ab2, ce2)));
  // Each block of 128 bits now holds one part of all four.
#if HWY_TARGET == HWY_AVX3
  sums = hn::Add(sums, hn::SwapAdjacentBlocks(sums));
  sums = hn::Add(sums, hn::ReverseBlocks(d, sums));
  const auto low = hn::LowerHalf(hn::LowerHalf(sums));
#elif HWY_TARGET == HWY_AVX2
  sums = hn::Add(sums, hn::SwapAdjacentBlocks(sums));
  const auto low = hn::LowerHalf(sums);
#else
  const auto low = sums;
#endif
  const hn::Full128<float> four;
  hn::StoreU(hn::Mul(low, hn::Set(four, factor)), four, out);
}
#endif

/// x . y
template <typename A>
HWY_INLINE A dot(const A* HWY_RESTRICT x, const A* HWY_RESTRICT y, int64_t width) {
  const Tag<A> d;
  auto sum = hn::Zero(d);
  for (int64_t c = 0; c < width; c += hn::Lanes(d)) {
    sum = hn::MulAdd(hn::LoadU(d, x + c), hn::LoadU(d, y + c), sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// out = factor x . k for four k of kCount vectors, or of any number of them if it is 0; then x is
/// in memory, else in registers.
template <int64_t kCount, typename A>
HWY_INLINE void dot_four(const A* HWY_RESTRICT x, const Vec<A>* HWY_RESTRICT held,
                         const A* HWY_RESTRICT k0, const A* HWY_RESTRICT k1,
                         const A* HWY_RESTRICT k2, const A* HWY_RESTRICT k3, int64_t width,
                         A factor, A* HWY_RESTRICT out) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d), count = kCount == 0 ? width / lanes : kCount;
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (int64_t v = 0; v < count; ++v) {
    const auto q = kCount == 0 ? hn::LoadU(d, x + v * lanes) : held[v];
    s0 = hn::MulAdd(q, hn::Load(d, k0 + v * lanes), s0);
    s1 = hn::MulAdd(q, hn::Load(d, k1 + v * lanes), s1);
    s2 = hn::MulAdd(q, hn::Load(d, k2 + v * lanes), s2);
    s3 = hn::MulAdd(q, hn::Load(d, k3 + v * lanes), s3);
  }
  store_sums<A>(s0, s1, s2, s3, factor, out);
}

template <int64_t kCount, typename A>
HWY_INLINE void dot_reads(const A* HWY_RESTRICT x, const A* HWY_RESTRICT base,
                          const int64_t* HWY_RESTRICT at, int64_t n, int64_t width, A factor,
                          A* HWY_RESTRICT out) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  Vec<A> held[HWY_MAX(kCount, 1)];
  for (int64_t v = 0; v < kCount; ++v) held[v] = hn::LoadU(d, x + v * lanes);
  int64_t r = 0;
  for (; r + 4 <= n; r += 4) {
    dot_four<kCount, A>(x, held, base + at[r], base + at[r + 1], base + at[r + 2], base + at[r + 3],
                        width, factor, out + r);
  }
  if (r < n) {
    const int64_t last = n - 1;
    dot_four<kCount, A>(x, held, base + at[r], base + at[HWY_MIN(r + 1, last)],
                        base + at[HWY_MIN(r + 2, last)], base + at[last], width, factor, out + r);
  }
}

/// out[r] = factor x . (base + at[r]) for r < n. `out` has room for a multiple of kPad; do not load
/// whole vectors of it at once: the stores are narrower, and such a load waits for all of them.
template <typename A>
HWY_INLINE void dot_reads(const A* HWY_RESTRICT x, const A* HWY_RESTRICT base,
                          const int64_t* HWY_RESTRICT at, int64_t n, int64_t width, A factor,
                          A* HWY_RESTRICT out) {
  if (width == kVectors * static_cast<int64_t>(hn::Lanes(Tag<A>()))) {
    dot_reads<kVectors>(x, base, at, n, width, factor, out);
  } else {
    dot_reads<0>(x, base, at, n, width, factor, out);
  }
}

/// The lanes at r of reads r < n, else `other`.
template <typename A>
HWY_INLINE Vec<A> first_reads(Vec<A> all, int64_t r, int64_t n, A other) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  if (HWY_LIKELY(n - r >= lanes)) return all;
  return hn::IfThenElse(hn::FirstN(d, n > r ? n - r : 0), all, hn::Set(d, other));
}

/// p[r] for r < n, else `other`.
template <typename A>
HWY_INLINE Vec<A> load_reads(const A* HWY_RESTRICT p, int64_t r, int64_t n, A other) {
  return first_reads<A>(hn::Load(Tag<A>(), p + r), r, n, other);
}

/// base[slots[r]] for the lanes at r; every one of `slots` must be an index of base.
HWY_INLINE Vec<float> gather_slots(const float* HWY_RESTRICT base,
                                   const int32_t* HWY_RESTRICT slots) {
  const Tag<float> d;
  const hn::RebindToSigned<decltype(d)> index;
  return hn::GatherIndex(d, base, hn::LoadU(index, slots));
}
HWY_INLINE Vec<double> gather_slots(const double* HWY_RESTRICT base,
                                    const int32_t* HWY_RESTRICT slots) {
  const Tag<double> d;
  const hn::RebindToSigned<decltype(d)> index;
  const hn::Rebind<int32_t, decltype(d)> half;
  return hn::GatherIndex(d, base, hn::PromoteTo(index, hn::LoadU(half, slots)));
}

/// p = softmax of p[0 .. n), in place; up to the next multiple of kPad it is 0.
template <typename A>
HWY_INLINE void softmax(A* HWY_RESTRICT p, int64_t n) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d), end = padded(n);
  constexpr A kNone = -std::numeric_limits<A>::infinity();
  auto largest = hn::Set(d, kNone);
  for (int64_t r = 0; r < n; r += lanes) largest = hn::Max(largest, load_reads(p, r, n, kNone));
  largest = hn::MaxOfLanes(d, largest);
  auto sum = hn::Zero(d);
  for (int64_t r = 0; r < end; r += lanes) {
    const auto e = exp_of(hn::Sub(load_reads(p, r, n, kNone), largest));
    hn::Store(e, d, p + r);
    sum = hn::Add(sum, e);
  }
  const auto inverse = hn::Div(hn::Set(d, A{1}), hn::SumOfLanes(d, sum));
  for (int64_t r = 0; r < end; r += lanes) {
    hn::Store(hn::Mul(hn::Load(d, p + r), inverse), d, p + r);
  }
}

/// body(count, c) with as many vectors of columns [from, to) at once as there are: `count` is a
/// constant, vectors from column c on. One sweep over the reads does them all, and half a row, the
/// share of a team's member, is not swept twice.
template <typename A, typename Body>
HWY_INLINE void by_columns(int64_t from, int64_t to, const Body& body) {
  const int64_t lanes = hn::Lanes(Tag<A>());
  int64_t c = from;
  for (; c + kVectors * lanes <= to; c += kVectors * lanes) {
    body(std::integral_constant<int64_t, kVectors>(), c);
  }
  for (; c + 2 * lanes <= to; c += 2 * lanes) body(std::integral_constant<int64_t, 2>(), c);
  for (; c < to; c += lanes) body(std::integral_constant<int64_t, 1>(), c);
}

/// Sums over reads of columns [c, c + kCount * lanes): sum[v] = sum_r w[r] base[at[r] + c + v *
/// lanes]. Two partial sums, whatever kCount, so that a column does not depend on its block.
template <int64_t kCount, typename A>
HWY_INLINE void weighted_sum(const A* HWY_RESTRICT w, const A* HWY_RESTRICT base,
                             const int64_t* HWY_RESTRICT at, int64_t n, Vec<A>* HWY_RESTRICT sum) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  Vec<A> s0[kCount], s1[kCount];
  for (int64_t v = 0; v < kCount; ++v) s0[v] = s1[v] = hn::Zero(d);
  int64_t r = 0;
  for (; r + 2 <= n; r += 2) {
    const A *x0 = base + at[r], *x1 = base + at[r + 1];
    const auto w0 = hn::Set(d, w[r]), w1 = hn::Set(d, w[r + 1]);
    for (int64_t v = 0; v < kCount; ++v) {
      s0[v] = hn::MulAdd(w0, hn::Load(d, x0 + v * lanes), s0[v]);
      s1[v] = hn::MulAdd(w1, hn::Load(d, x1 + v * lanes), s1[v]);
    }
  }
  if (r < n) {
    const A* x0 = base + at[r];
    const auto w0 = hn::Set(d, w[r]);
    for (int64_t v = 0; v < kCount; ++v) {
      s0[v] = hn::MulAdd(w0, hn::Load(d, x0 + v * lanes), s0[v]);
    }
  }
  for (int64_t v = 0; v < kCount; ++v) sum[v] = hn::Add(s0[v], s1[v]);
}

/// finish(c, sum) for each vector of columns [from, to): sum = sum_r w[r] base[at[r] + c ...].
template <typename A, typename Finish>
HWY_INLINE void gather_reads(const A* HWY_RESTRICT w, const A* HWY_RESTRICT base,
                             const int64_t* HWY_RESTRICT at, int64_t n, int64_t from, int64_t to,
                             const Finish& finish) {
  const int64_t lanes = hn::Lanes(Tag<A>());
  by_columns<A>(from, to, [&](auto count, int64_t c) HWY_ATTR {
    Vec<A> sum[count];
    weighted_sum<count>(w, base + c, at, n, sum);
    for (int64_t v = 0; v < count; ++v) finish(c + v * lanes, sum[v]);
  });
}

/// weighted_sum() of two buffers together, a sum for each.
template <int64_t kCount, typename A>
HWY_INLINE void weighted_sum(const A* HWY_RESTRICT wx, const A* HWY_RESTRICT x,
                             const A* HWY_RESTRICT wy, const A* HWY_RESTRICT y,
                             const int64_t* HWY_RESTRICT at, int64_t n, Vec<A>* HWY_RESTRICT sum) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  Vec<A> s0[kCount], s1[kCount];
  for (int64_t v = 0; v < kCount; ++v) s0[v] = s1[v] = hn::Zero(d);
  for (int64_t r = 0; r < n; ++r) {
    const A *x0 = x + at[r], *y0 = y + at[r];
    const auto w0 = hn::Set(d, wx[r]), w1 = hn::Set(d, wy[r]);
    for (int64_t v = 0; v < kCount; ++v) {
      s0[v] = hn::MulAdd(w0, hn::Load(d, x0 + v * lanes), s0[v]);
      s1[v] = hn::MulAdd(w1, hn::Load(d, y0 + v * lanes), s1[v]);
    }
  }
  for (int64_t v = 0; v < kCount; ++v) sum[v] = hn::Add(s0[v], s1[v]);
}

/// finish(c, sum) for each vector of columns [from, to): sum = sum_r wx[r] x[at[r] + c ...] + wy[r]
/// y[at[r] + c ...].
template <typename A, typename Finish>
HWY_INLINE void gather_two_reads(const A* HWY_RESTRICT wx, const A* HWY_RESTRICT x,
                                 const A* HWY_RESTRICT wy, const A* HWY_RESTRICT y,
                                 const int64_t* HWY_RESTRICT at, int64_t n, int64_t from,
                                 int64_t to, const Finish& finish) {
  const int64_t lanes = hn::Lanes(Tag<A>());
  by_columns<A>(from, to, [&](auto count, int64_t c) HWY_ATTR {
    Vec<A> sum[count];
    weighted_sum<count>(wx, x + c, wy, y + c, at, n, sum);
    for (int64_t v = 0; v < count; ++v) finish(c + v * lanes, sum[v]);
  });
}

/// base[at[r] + v * lanes] += w[r] x[v] for v < kCount.
template <int64_t kCount, typename A>
HWY_INLINE void scatter_columns(const A* HWY_RESTRICT w, const Vec<A>* HWY_RESTRICT x,
                                A* HWY_RESTRICT base, const int64_t* HWY_RESTRICT at, int64_t n) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t r = 0; r < n; ++r) {
    A* to = base + at[r];
    const auto weight = hn::Set(d, w[r]);
    for (int64_t v = 0; v < kCount; ++v) {
      hn::Store(hn::MulAdd(weight, x[v], hn::Load(d, to + v * lanes)), d, to + v * lanes);
    }
  }
}

/// base[at[r] + c] += w[r] x over columns c in [from, to), where load(c) is x at columns c ... .
template <typename A, typename Load>
HWY_INLINE void scatter_reads(const A* HWY_RESTRICT w, A* HWY_RESTRICT base,
                              const int64_t* HWY_RESTRICT at, int64_t n, int64_t from, int64_t to,
                              const Load& load) {
  const int64_t lanes = hn::Lanes(Tag<A>());
  by_columns<A>(from, to, [&](auto count, int64_t c) HWY_ATTR {
    Vec<A> x[count];
    for (int64_t v = 0; v < count; ++v) x[v] = load(c + v * lanes);
    scatter_columns<count>(w, x, base + c, at, n);
  });
}

}  // namespace hopmix::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
