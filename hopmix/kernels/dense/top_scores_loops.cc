#include "hopmix/kernels/dense/top_scores_loops.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/dense/top_scores_loops.cc"
#include <hwy/foreach_target.h>  // before highway.h

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename A>
using Tag = hn::CappedTag<A, kTileLanes>;
template <typename A>
using KeyTag = hn::RebindToSigned<Tag<A>>;

template <typename A>
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<A>()));

template <typename A>
constexpr ScoreKey<A> kLeast = std::numeric_limits<ScoreKey<A>>::min();
template <typename A>
constexpr ScoreKey<A> kMost = std::numeric_limits<ScoreKey<A>>::max();

template <typename A>
HWY_INLINE hn::Vec<KeyTag<A>> keys_of(hn::Vec<Tag<A>> x) {
  const Tag<A> d;
  const KeyTag<A> dk;
  const auto bits = hn::BitCast(dk, hn::Add(x, hn::Zero(d)));  // -0 becomes 0
  const auto key = hn::Xor(bits, hn::And(hn::BroadcastSignBit(bits), hn::Set(dk, kMost<A>)));
  return hn::IfThenElse(hn::RebindMask(dk, hn::IsNaN(x)), hn::Set(dk, kLeast<A>), key);
}

/// Its inverse; NaN for the least.
template <typename A>
A score_of(ScoreKey<A> key) {
  return std::bit_cast<A>(static_cast<ScoreKey<A>>(key < 0 ? key ^ kMost<A> : key));
}

/// How many of n keys are at least `key`, which is not the least; those up to the next whole vector
/// are the least.
template <typename A>
int64_t count_from(const ScoreKey<A>* keys, int64_t n, ScoreKey<A> key) {
  const KeyTag<A> d;
  const auto below = hn::Set(d, key - 1);
  size_t count = 0;
  for (int64_t c = 0; c < n; c += kLanes<A>) {
    count += hn::CountTrue(d, hn::Gt(hn::LoadU(d, keys + c), below));
  }
  return static_cast<int64_t>(count);
}

template <typename A>
void fill_vector(Candidates<A>& row) {
  const KeyTag<A> d;
  hn::StoreU(hn::Set(d, kLeast<A>), d, row.keys + row.count);
}

/// Drops all but the kappa best of more than kappa.
template <typename A>
void tighten(int64_t kappa, Candidates<A>& row) {
  using Key = ScoreKey<A>;
  using Unsigned = std::make_unsigned_t<Key>;
  const KeyTag<A> d;
  fill_vector(row);
  auto most = hn::Set(d, kLeast<A>);
  for (int64_t c = 0; c < row.count; c += kLanes<A>) {
    most = hn::Max(most, hn::LoadU(d, row.keys + c));
  }
  // The kappa-th best key is the largest that at least kappa reach, as all do the last one. By
  // bisection, or until one divides the best from the rest.
  Key low = row.threshold, high = hn::GetLane(hn::MaxOfLanes(d, most));
  int64_t reached = row.count;
  while (low < high && reached != kappa) {
    const Unsigned gap = static_cast<Unsigned>(high) - static_cast<Unsigned>(low);
    const Key middle = static_cast<Key>(static_cast<Unsigned>(low) + gap - gap / 2);
    const int64_t count = count_from<A>(row.keys, row.count, middle);
    if (count >= kappa) {
      low = middle;
      reached = count;
    } else {
      high = middle - 1;
    }
  }

  int64_t to = 0;
  if (reached == kappa) {
    const auto below = hn::Set(d, low - 1);
    auto least = hn::Set(d, kMost<A>);
    for (int64_t c = 0; c < row.count; c += kLanes<A>) {
      const auto keys = hn::LoadU(d, row.keys + c), columns = hn::LoadU(d, row.columns + c);
      const auto kept = hn::Gt(keys, below);
      least = hn::Min(least, hn::IfThenElse(kept, keys, least));
      hn::StoreU(hn::Compress(keys, kept), d, row.keys + to);
      hn::StoreU(hn::Compress(columns, kept), d, row.columns + to);
      to += static_cast<int64_t>(hn::CountTrue(d, kept));
    }
    low = hn::GetLane(hn::MinOfLanes(d, least));
  } else {  // several equal ones where the best end: the first of them
    int64_t equal = kappa;
    for (int64_t c = 0; c < row.count; ++c) equal -= row.keys[c] > low;
    for (int64_t c = 0; c < row.count; ++c) {
      const Key key = row.keys[c];
      if (key < low || (key == low && equal-- <= 0)) continue;
      row.keys[to] = key;
      row.columns[to++] = row.columns[c];
    }
  }
  row.count = kappa;
  row.threshold = low;
}

/// Takes in n scores of columns (or blocks) `first` and on. No score is at most NaN, so where there
/// is no threshold all get in.
template <typename A>
HWY_INLINE void offer_scores(const A* scores, int64_t n, int64_t first, const TopShape& shape,
                             int64_t capacity, Candidates<A>& row) {
  const Tag<A> d;
  const KeyTag<A> dk;
  for (int64_t begin = 0; begin < n; begin += TopShape::kGroup) {
    const int64_t end = std::min(n, begin + TopShape::kGroup);
    auto limit = hn::Set(d, score_of<A>(row.threshold));
    auto any = hn::FirstN(d, 0);
    for (int64_t c = begin; c < end; c += kLanes<A>) {
      any = hn::Or(any, hn::Not(hn::Le(hn::LoadU(d, scores + c), limit)));
    }
    if (hn::AllFalse(d, any)) continue;
    if (row.count + TopShape::kGroup > capacity) {
      tighten(shape.kappa, row);
      limit = hn::Set(d, score_of<A>(row.threshold));
    }
    int64_t to = row.count;
    for (int64_t c = begin; c < end; c += kLanes<A>) {
      const auto x = hn::LoadU(d, scores + c);
      auto better = hn::Not(hn::Le(x, limit));
      if (HWY_TARGET != HWY_AVX3 && hn::AllFalse(d, better)) continue;  // Compress is slow there
      if (end - c < kLanes<A>) {
        better = hn::And(better, hn::FirstN(d, static_cast<size_t>(end - c)));
      }
      const auto kept = hn::RebindMask(dk, better);
      const auto columns = hn::Iota(dk, static_cast<ScoreKey<A>>(first + c));
      hn::StoreU(hn::Compress(keys_of<A>(x), kept), dk, row.keys + to);
      hn::StoreU(hn::Compress(columns, kept), dk, row.columns + to);
      to += static_cast<int64_t>(hn::CountTrue(d, better));
    }
    row.count = to;
  }
}

/// The largest of n scores that are numbers, or NaN.
template <typename A>
A best_of(const A* scores, int64_t n, A before) {
  const Tag<A> d;
  const KeyTag<A> dk;
  auto most = keys_of<A>(hn::Set(d, before));
  for (int64_t c = 0; c < n; c += kLanes<A>) {
    auto keys = keys_of<A>(hn::LoadU(d, scores + c));
    if (n - c < kLanes<A>) {
      keys = hn::IfThenElse(hn::FirstN(dk, static_cast<size_t>(n - c)), keys, most);
    }
    most = hn::Max(most, keys);
  }
  return score_of<A>(hn::GetLane(hn::MaxOfLanes(dk, most)));
}

/// Takes in blocks of columns [first, first + n); the last may go on.
template <typename A>
void offer_blocks(const A* scores, int64_t n, int64_t first, const TopShape& shape,
                  int64_t capacity, Candidates<A>& row) {
  A best[TopShape::kGroup + kTileLanes];
  int64_t count = 0;
  for (int64_t c = 0; c < n;) {
    const int64_t block = (first + c) / shape.block;
    const int64_t rest = (block + 1) * shape.block - (first + c), size = std::min(rest, n - c);
    const bool goes_on = row.open_block == block;
    const A most =
        best_of(scores + c, size, goes_on ? row.open : std::numeric_limits<A>::quiet_NaN());
    c += size;
    if (size < rest) {
      row.open = most;
      row.open_block = block;
      break;
    }
    row.open_block = -1;
    best[count++] = most;
    if (count == TopShape::kGroup || n - c < shape.block) {
      offer_scores(best, count, block + 1 - count, shape, capacity, row);
      count = 0;
    }
  }
}

template <typename A>
void offer_tile(const ScoreTile<A>& tile, int64_t diagonal, int64_t first, const TopShape& shape,
                Candidates<A>* rows) {
  const int64_t capacity = shape.capacity();
  for (int64_t r = 0; r < tile.rows; ++r) {
    const A* scores = tile.scores + r * tile.ld;
    const int64_t visible = std::clamp<int64_t>(diagonal + r, 0, tile.cols);
    if (shape.block == 1) {
      offer_scores(scores, visible, first, shape, capacity, rows[r]);
    } else {
      offer_blocks(scores, visible, first, shape, capacity, rows[r]);
    }
  }
}

template <typename A>
void rank_row(const TopShape& shape, Candidates<A>& row, int32_t* out) {
  using Key = ScoreKey<A>;
  if (row.open_block >= 0) {
    A last[kTileLanes] = {row.open};
    offer_scores(last, 1, row.open_block, shape, shape.capacity(), row);
  }
  if (row.count > shape.kappa) tighten(shape.kappa, row);

  // A place is the number of better ones. For many that is slower than a sort.
  constexpr int64_t kFew = 128;
  if (row.count > kFew) {
    std::vector<int32_t> order(static_cast<size_t>(row.count));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return row.keys[a] > row.keys[b]; });
    for (size_t c = 0; c < order.size(); ++c) {
      out[c] = static_cast<int32_t>(row.columns[order[c]]);
    }
    return;
  }
  const KeyTag<A> d;
  fill_vector(row);
  for (int64_t i = 0; i < row.count; ++i) {
    const Key own = row.keys[i];
    const auto key = hn::Set(d, own);
    size_t place = 0;
    for (int64_t c = 0; c < row.count; c += kLanes<A>) {
      const auto other = hn::LoadU(d, row.keys + c);
      const auto before =
          hn::FirstN(d, static_cast<size_t>(std::clamp<int64_t>(i - c, 0, kLanes<A>)));
      place += hn::CountTrue(d, hn::Or(hn::Gt(other, key), hn::And(before, hn::Eq(other, key))));
    }
    out[place] = static_cast<int32_t>(row.columns[i]);
  }
}

// What is exported cannot be a template.
TopLoops<float> float_loops() { return {offer_tile<float>, rank_row<float>}; }
TopLoops<double> double_loops() { return {offer_tile<double>, rank_row<double>}; }

}  // namespace hopmix::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(float_loops);
HWY_EXPORT(double_loops);

template <>
TopLoops<float> top_loops() {
  return HWY_DYNAMIC_DISPATCH(float_loops)();
}
template <>
TopLoops<double> top_loops() {
  return HWY_DYNAMIC_DISPATCH(double_loops)();
}

}  // namespace hopmix::kernels
#endif
