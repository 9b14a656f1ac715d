#include "hopmix/kernels/dense/softmax_tile.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/dense/softmax_tile.cc"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename A>
using Tag = hn::CappedTag<A, kTileLanes>;

/// 2^x for x <= 0 or barely more; 0 below the normal numbers. NaN stays NaN, which hn::Exp and
/// hn::Max may hide.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2(D d, V x) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return hn::IfThenElse(hn::IsNaN(x), x,
                          hn::Exp(d, hn::Mul(x, hn::Set(d, 0.693147180559945309417))));
  } else {
    // 2^n 2^f with |f| <= 1/2; the polynomial is 2^f to 5e-9.
    const V low = hn::Set(d, -127.0f);
    x = hn::IfThenElse(hn::Lt(x, low), low, x);
    const V n = hn::Round(x);
    const V f = hn::Sub(x, n);
    V y = hn::Set(d, 1.5461447e-4f);
    y = hn::MulAdd(y, f, hn::Set(d, 1.33908674e-3f));
    y = hn::MulAdd(y, f, hn::Set(d, 9.61805667e-3f));
    y = hn::MulAdd(y, f, hn::Set(d, 5.550357104e-2f));
    y = hn::MulAdd(y, f, hn::Set(d, 0.24022650922f));
    y = hn::MulAdd(y, f, hn::Set(d, 0.69314718803f));
    y = hn::MulAdd(y, f, hn::Set(d, 1.0f));
    const hn::RebindToSigned<D> di;
    const auto power = hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127));
    return hn::Mul(y, hn::BitCast(d, hn::ShiftLeft<23>(power)));
  }
}

/// The nearest bfloat16 in the upper half of each lane, ties to even.
template <class D, class V>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> round_to_upper(D d, V x) {
  (void)d;
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  return hn::And(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))), hn::Set(du, 0xffff0000u));
}

template <class D, class V, typename A>
HWY_INLINE void store(D d, V x, A* to) {
  hn::StoreU(x, d, to);
}
template <class D, class V>
HWY_INLINE void store(D d, V x, Bfloat16* to) {
  const hn::Rebind<uint16_t, D> half;
  const auto word = hn::ShiftRight<16>(round_to_upper(d, x));
  hn::StoreU(hn::TruncateTo(half, word), half, reinterpret_cast<uint16_t*>(to));
}

template <typename A, typename O>
void softmax_tile(const ScoreTile<A>& tile, int64_t diagonal, O* p, int64_t ldp, A* largest, A* sum,
                  A* acc, int64_t width) {
  const Tag<A> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const A lowest = -std::numeric_limits<A>::infinity();
  const auto factor = hn::Set(d, tile.factor), hidden = hn::Set(d, lowest);
  for (int64_t r = 0; r < tile.rows; ++r) {
    const A* s = tile.scores + r * tile.ld;
    O* out = p + r * ldp;
    const int64_t visible = std::clamp<int64_t>(diagonal + r, 0, tile.cols);
    const int64_t whole = visible / lanes * lanes;
    const auto rest = hn::FirstN(d, static_cast<size_t>(visible - whole));

    auto most = hidden, most2 = hidden;
    int64_t c = 0;
    for (; c + 2 * lanes <= whole; c += 2 * lanes) {
      most = hn::Max(most, hn::Mul(factor, hn::LoadU(d, s + c)));
      most2 = hn::Max(most2, hn::Mul(factor, hn::LoadU(d, s + c + lanes)));
    }
    if (c < whole) most = hn::Max(most, hn::Mul(factor, hn::LoadU(d, s + c)));
    if (whole < visible) {
      const auto x = hn::Mul(factor, hn::LoadU(d, s + whole));
      most2 = hn::Max(most2, hn::IfThenElse(rest, x, hidden));
    }
    const A before = largest[r];
    const A m = std::max(before, hn::GetLane(hn::MaxOfLanes(d, hn::Max(most, most2))));

    // Not MulSub: the largest term is 1 to the bit, however coarse the scores are.
    const auto shift = hn::Set(d, m);
    auto total = hn::Zero(d);
    for (c = 0; c < whole; c += lanes) {
      const auto e = exp2(d, hn::Sub(hn::Mul(factor, hn::LoadU(d, s + c)), shift));
      total = hn::Add(total, e);
      store(d, e, out + c);
    }
    if (whole < visible) {
      const auto e = exp2(d, hn::Sub(hn::Mul(factor, hn::LoadU(d, s + whole)), shift));
      const auto kept = hn::IfThenElseZero(rest, e);
      total = hn::Add(total, kept);
      store(d, kept, out + whole);
      c += lanes;
    }
    for (; c < tile.cols; c += lanes) store(d, hn::Zero(d), out + c);
    if (visible == 0) continue;

    largest[r] = m;
    if (before == lowest) {
      sum[r] = hn::GetLane(hn::SumOfLanes(d, total));  // nothing to rescale yet
      continue;
    }
    const A ratio = std::exp2(before - m);
    sum[r] = sum[r] * ratio + hn::GetLane(hn::SumOfLanes(d, total));
    if (ratio == 1) continue;
    const auto by = hn::Set(d, ratio);
    for (int64_t w = 0; w < width; w += lanes) {
      A* at = acc + r * width + w;
      hn::StoreU(hn::Mul(by, hn::LoadU(d, at)), d, at);
    }
  }
}

/// The weights of row r at columns [c, c + lanes).
template <class D, typename A>
HWY_INLINE hn::Vec<D> weights(D d, const ScoreTile<A>& tile, int64_t diagonal, const A* lse,
                              int64_t r, int64_t c) {
  const auto x = hn::MulSub(hn::Set(d, tile.factor), hn::LoadU(d, tile.scores + r * tile.ld + c),
                            hn::LoadU(d, lse + c));
  // Scores made once more may exceed the lse by a rounding, which of enormous ones is enormous.
  // Zero comes first to keep a NaN.
  const auto p = exp2(d, hn::Min(hn::Zero(d), x));
  const int64_t skip = diagonal + r - c;
  if (skip <= 0) return p;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  return hn::IfThenZeroElse(hn::FirstN(d, static_cast<size_t>(std::min(skip, lanes))), p);
}

template <typename A>
void weights_tile(const ScoreTile<A>& tile, int64_t diagonal, const A* lse, A* p, int64_t ldp) {
  const Tag<A> d;
  for (int64_t r = 0; r < tile.rows; ++r) {
    for (int64_t c = 0; c < tile.cols; c += static_cast<int64_t>(hn::Lanes(d))) {
      hn::StoreU(weights(d, tile, diagonal, lse, r, c), d, p + r * ldp + c);
    }
  }
}

template <typename A, typename O>
void softmax_tile_backward(const ScoreTile<A>& tile, int64_t diagonal, const A* lse, const A* delta,
                           const A* grad, O* p, O* ds, O* pairs) {
  const Tag<A> d;
  for (int64_t r = 0; r < tile.rows; r += 2) {
    for (int64_t c = 0; c < tile.cols; c += static_cast<int64_t>(hn::Lanes(d))) {
      const int64_t at = r * tile.ld + c, next = at + tile.ld;
      const auto shift = hn::LoadU(d, delta + c);
      const auto p0 = weights(d, tile, diagonal, lse, r, c);
      const auto p1 = weights(d, tile, diagonal, lse, r + 1, c);
      const auto d0 = hn::Mul(p0, hn::Sub(hn::LoadU(d, grad + at), shift));
      const auto d1 = hn::Mul(p1, hn::Sub(hn::LoadU(d, grad + next), shift));
      store(d, p0, p + at);
      store(d, p1, p + next);
      store(d, d0, ds + at);
      store(d, d1, ds + next);
      if constexpr (!std::is_same_v<A, O>) {
        const hn::RebindToUnsigned<Tag<A>> du;
        const auto low = hn::ShiftRight<16>(round_to_upper(d, d0));
        hn::StoreU(hn::Or(low, round_to_upper(d, d1)), du,
                   reinterpret_cast<uint32_t*>(pairs) + r / 2 * tile.ld + c);
      }
    }
  }
}

/// Columns [c, c + N lanes) of substitute_tile.
template <int N, class D, typename A>
HWY_INLINE void substitute_columns(D d, int64_t n, int64_t width, bool self, const A* p,
                                   int64_t ldp, const A* sum, const A* gate, A* acc, A* w) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < n; ++i) {
    hn::Vec<D> x[N];
    for (int v = 0; v < N; ++v) x[v] = hn::LoadU(d, acc + i * width + v * lanes);
    for (int64_t j = 0; j < i; ++j) {
      const auto weight = hn::Set(d, p[i * ldp + j]);
      for (int v = 0; v < N; ++v) {
        x[v] = hn::MulAdd(weight, hn::LoadU(d, w + j * width + v * lanes), x[v]);
      }
    }
    const A inverse = sum[i] == 0 ? 0 : 1 / sum[i];
    const A own = self ? p[i * ldp + i] * inverse : 0;
    const auto by = hn::Set(d, inverse), g = hn::Set(d, gate[i]), diag = hn::Set(d, own);
    const auto solve = hn::Set(d, 1 / (1 - gate[i] * own));
    for (int v = 0; v < N; ++v) {
      A* at = w + i * width + v * lanes;
      const auto mixed = hn::Mul(by, x[v]);
      const auto y = hn::Mul(solve, hn::MulAdd(g, mixed, hn::LoadU(d, at)));
      hn::StoreU(y, d, at);
      // Without self, a c that is no number stays out of its own mix: 0 times it would not be 0.
      hn::StoreU(self ? hn::MulAdd(diag, y, mixed) : mixed, d, acc + i * width + v * lanes);
    }
  }
}

template <typename A>
void substitute_tile(int64_t n, int64_t width, bool self, const A* p, int64_t ldp, const A* sum,
                     const A* gate, A* acc, A* w) {
  const Tag<A> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  for (; c + 4 * lanes <= width; c += 4 * lanes) {
    substitute_columns<4>(d, n, width, self, p, ldp, sum, gate, acc + c, w + c);
  }
  for (; c < width; c += lanes) {
    substitute_columns<1>(d, n, width, self, p, ldp, sum, gate, acc + c, w + c);
  }
}

template <int N, class D, typename A>
HWY_INLINE void substitute_columns_backward(D d, int64_t n, int64_t width, bool self, const A* p,
                                            int64_t ldp, const A* gate, A* l, A* h) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t j = n - 1; j >= 0; --j) {
    hn::Vec<D> x[N];
    for (int v = 0; v < N; ++v) x[v] = hn::LoadU(d, l + j * width + v * lanes);
    for (int64_t i = j + 1; i < n; ++i) {
      const auto weight = hn::Set(d, p[j * ldp + i]);
      for (int v = 0; v < N; ++v) {
        x[v] = hn::MulAdd(weight, hn::LoadU(d, h + i * width + v * lanes), x[v]);
      }
    }
    const A own = self ? p[j * ldp + j] : 0;
    const auto g = hn::Set(d, gate[j]), diag = hn::Set(d, own);
    const auto solve = hn::Set(d, 1 / (1 - gate[j] * own));
    for (int v = 0; v < N; ++v) {
      A* at = h + j * width + v * lanes;
      const auto direct = hn::LoadU(d, at);
      const auto y = hn::Mul(solve, self ? hn::MulAdd(diag, direct, x[v]) : x[v]);
      hn::StoreU(y, d, l + j * width + v * lanes);
      hn::StoreU(hn::MulAdd(g, y, direct), d, at);
    }
  }
}

template <typename A>
void substitute_tile_backward(int64_t n, int64_t width, bool self, const A* p, int64_t ldp,
                              const A* gate, A* l, A* h) {
  const Tag<A> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  for (; c + 4 * lanes <= width; c += 4 * lanes) {
    substitute_columns_backward<4>(d, n, width, self, p, ldp, gate, l + c, h + c);
  }
  for (; c < width; c += lanes) {
    substitute_columns_backward<1>(d, n, width, self, p, ldp, gate, l + c, h + c);
  }
}

void transpose_tile(const uint32_t* from, int64_t rows, int64_t cols, int64_t stride, uint32_t* to,
                    int64_t ld) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) to[c * ld + r] = from[r * stride + c];
  }
#else
  const hn::FixedTag<uint32_t, 4> d;
  const hn::Repartition<uint64_t, decltype(d)> wide;
  // A few rows at a time: a cache line that is read for four columns serves the next four too.
  constexpr int64_t kRows = 32;
  for (int64_t first = 0; first < rows; first += kRows) {
    const int64_t end = std::min(rows, first + kRows);
    for (int64_t c = 0; c < cols; c += 4) {
      for (int64_t r = first; r < end; r += 4) {
        const uint32_t* x = from + r * stride + c;
        const auto x0 = hn::LoadU(d, x), x1 = hn::LoadU(d, x + stride);
        const auto x2 = hn::LoadU(d, x + 2 * stride), x3 = hn::LoadU(d, x + 3 * stride);
        const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, x0, x1));
        const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, x2, x3));
        const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, x0, x1));
        const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, x2, x3));
        uint32_t* y = to + c * ld + r;
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), d, y);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)), d, y + ld);
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), d, y + 2 * ld);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23)), d, y + 3 * ld);
      }
    }
  }
#endif
}

template <typename A, typename O>
TileTable<A, O> table() {
  return {softmax_tile<A, O>, weights_tile<A>, softmax_tile_backward<A, O>, substitute_tile<A>,
          substitute_tile_backward<A>};
}

// What is exported cannot be a template.
TileTable<float, float> float_table() { return table<float, float>(); }
TileTable<float, Bfloat16> bfloat16_table() { return table<float, Bfloat16>(); }
TileTable<double, double> double_table() { return table<double, double>(); }

}  // namespace hopmix::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(float_table);
HWY_EXPORT(bfloat16_table);
HWY_EXPORT(double_table);
HWY_EXPORT(transpose_tile);

void transpose_words(const void* from, int64_t rows, int64_t cols, int64_t stride, void* to,
                     int64_t ld) {
  HWY_DYNAMIC_DISPATCH(transpose_tile)
  (static_cast<const uint32_t*>(from), rows, cols, stride, static_cast<uint32_t*>(to), ld);
}

template <>
TileTable<float, float> tiles() {
  return HWY_DYNAMIC_DISPATCH(float_table)();
}
template <>
TileTable<float, Bfloat16> tiles() {
  return HWY_DYNAMIC_DISPATCH(bfloat16_table)();
}
template <>
TileTable<double, double> tiles() {
  return HWY_DYNAMIC_DISPATCH(double_table)();
}

}  // namespace hopmix::kernels
#endif
