#include "hopmix/kernels/decode/matrix_step_loops.h"

#include <algorithm>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/decode/matrix_step_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hopmix/kernels/base/exp-inl.h"
#include "hopmix/kernels/rows/row_ops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {
namespace {

/// Where the last vector of columns lies: kWhole inside the row, kNarrow in a row that is narrower
/// than it, kOverlap over columns that the one before it has done.
enum class Edge { kWhole, kNarrow, kOverlap };

/// kCount vectors of columns of a state from `first` on, `width` in a row. If kEmpty the state
/// before is 0: by the same arithmetic, so that a decay of NaN shows.
template <int64_t kCount, Edge kEdge, bool kEmpty, typename A>
struct Columns {
  static constexpr int64_t kVectors = kCount;
  int64_t first, width, done = 0;  // columns of the first vector that are not its own

  HWY_INLINE int64_t at(int64_t v) const {
    return first + v * static_cast<int64_t>(hn::Lanes(Tag<A>()));
  }
  HWY_INLINE Vec<A> load(const A* state, int64_t row, int64_t v) const {
    if constexpr (kEmpty) return hn::Zero(Tag<A>());
    const A* from = state + row * width + at(v);
    if constexpr (kEdge != Edge::kNarrow) return hn::LoadU(Tag<A>(), from);
    HWY_ALIGN A padded_row[kPad] = {};
    std::copy_n(from, width, padded_row);
    return hn::Load(Tag<A>(), padded_row);
  }
  HWY_INLINE void store(Vec<A> x, A* state, int64_t row, int64_t v) const {
    A* to = state + row * width + at(v);
    if constexpr (kEdge != Edge::kNarrow) return put(x, to);
    HWY_ALIGN A padded_row[kPad];
    hn::Store(x, Tag<A>(), padded_row);
    std::copy_n(padded_row, width, to);
  }
  /// Columns that are done stay as they are: `after` may be `before`, where they are new already.
  HWY_INLINE void put(Vec<A> x, A* to) const {
    const Tag<A> d;
    if constexpr (kEdge == Edge::kOverlap) {
      x = hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(done)), hn::LoadU(d, to), x);
    }
    hn::StoreU(x, d, to);
  }
};

/// body(columns) for as many columns at once as their sums fit in the registers.
template <bool kEmpty, typename A, typename Body>
HWY_INLINE void for_columns(int64_t values, const Body& body) {
  constexpr int64_t kMost = 2 * kVectors;
  const int64_t lanes = hn::Lanes(Tag<A>());
  if (values < lanes) return body(Columns<1, Edge::kNarrow, kEmpty, A>{0, values});
  int64_t c = 0;
  for (; c + kMost * lanes <= values; c += kMost * lanes) {
    body(Columns<kMost, Edge::kWhole, kEmpty, A>{c, values});
  }
  for (; c + 2 * lanes <= values; c += 2 * lanes) {
    body(Columns<2, Edge::kWhole, kEmpty, A>{c, values});
  }
  for (; c + lanes <= values; c += lanes) body(Columns<1, Edge::kWhole, kEmpty, A>{c, values});
  if (c == values) return;
  body(Columns<1, Edge::kOverlap, kEmpty, A>{values - lanes, values, c - (values - lanes)});
}

/// after = diag(decay) before + k u^T; if kReads o = after^T q.
template <bool kReads, typename A, class C>
HWY_INLINE void update(const StepHead<A>& head, const C& columns, const Vec<A>* HWY_RESTRICT u) {
  const Tag<A> d;
  Vec<A> sum[C::kVectors];
  for (int64_t v = 0; v < C::kVectors; ++v) sum[v] = hn::Zero(d);
  for (int64_t r = 0; r < head.keys; ++r) {
    const auto decay = hn::Set(d, head.decay[r]), key = hn::Set(d, head.k[r]);
    const auto query = hn::Set(d, head.q[r]);
    for (int64_t v = 0; v < C::kVectors; ++v) {
      const auto kept = hn::Mul(decay, columns.load(head.before, r, v));
      const auto s = hn::MulAdd(key, u[v], kept);
      columns.store(s, head.after, r, v);
      if constexpr (kReads) sum[v] = hn::MulAdd(query, s, sum[v]);
    }
  }
  if constexpr (kReads) {
    for (int64_t v = 0; v < C::kVectors; ++v) columns.put(sum[v], head.o + columns.at(v));
  }
}

template <bool kEmpty, typename A>
HWY_INLINE void add_to(const StepHead<A>& head) {
  for_columns<kEmpty, A>(head.values, [&](const auto& columns) HWY_ATTR {
    constexpr int64_t kCount = std::decay_t<decltype(columns)>::kVectors;
    Vec<A> u[kCount];
    for (int64_t v = 0; v < kCount; ++v) u[v] = hn::LoadU(Tag<A>(), head.v + columns.at(v));
    update<true>(head, columns, u);
  });
}

// o = S'^T q + (q . k) u: both sums of the first sweep over the state before are all that the
// second, which writes, still needs.
template <bool kEmpty, typename A>
HWY_INLINE void correct_in(const StepHead<A>& head) {
  const Tag<A> d;
  const auto both = hn::Set(d, dot(head.q, head.k, padded(head.keys)));
  for_columns<kEmpty, A>(head.values, [&](const auto& columns) HWY_ATTR {
    constexpr int64_t kCount = std::decay_t<decltype(columns)>::kVectors;
    Vec<A> from_k[kCount], from_q[kCount], u[kCount];
    for (int64_t v = 0; v < kCount; ++v) from_k[v] = from_q[v] = hn::Zero(d);
    for (int64_t r = 0; r < head.keys; ++r) {
      const auto key = hn::Set(d, head.decay[r] * head.k[r]);
      const auto query = hn::Set(d, head.decay[r] * head.q[r]);
      for (int64_t v = 0; v < kCount; ++v) {
        const auto s = columns.load(head.before, r, v);
        from_k[v] = hn::MulAdd(key, s, from_k[v]);
        from_q[v] = hn::MulAdd(query, s, from_q[v]);
      }
    }
    for (int64_t v = 0; v < kCount; ++v) {
      const auto error = hn::Sub(hn::LoadU(d, head.v + columns.at(v)), from_k[v]);
      u[v] = hn::Mul(hn::Set(d, head.beta), error);
      columns.put(hn::MulAdd(both, u[v], from_q[v]), head.o + columns.at(v));
    }
    update<false>(head, columns, u);
  });
}

template <typename A>
void add(const StepHead<A>& head) {
  head.before ? add_to<false>(head) : add_to<true>(head);
}

template <typename A>
void correct(const StepHead<A>& head) {
  head.before ? correct_in<false>(head) : correct_in<true>(head);
}

template <typename A>
void exponentials(int64_t n, A* x) {
  const Tag<A> d;
  for (int64_t c = 0; c < n; c += hn::Lanes(d)) hn::StoreU(exp_of(hn::LoadU(d, x + c)), d, x + c);
}

template <typename A>
MatrixStepLoops<A> table() {
  return {add<A>, correct<A>, exponentials<A>};
}
// What is exported cannot be a template.
MatrixStepLoops<float> float_table() { return table<float>(); }
MatrixStepLoops<double> double_table() { return table<double>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hopmix::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(float_table);
HWY_EXPORT(double_table);

template <>
MatrixStepLoops<float> matrix_step_loops() {
  return HWY_DYNAMIC_DISPATCH(float_table)();
}
template <>
MatrixStepLoops<double> matrix_step_loops() {
  return HWY_DYNAMIC_DISPATCH(double_table)();
}

}  // namespace hopmix::kernels
#endif
