#include "hopmix/kernels/decode/attention_step_loops.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/decode/attention_step_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hopmix/kernels/rows/row_ops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {
namespace {

template <typename T>
HWY_INLINE const T* row_at(const HeldRows<T>& rows, int64_t r) {
  return rows.data + (rows.slots ? rows.slots[r] : r) * rows.stride;
}

/// Columns of `width` that make whole vectors.
template <typename A>
HWY_INLINE int64_t whole_columns(int64_t width) {
  const int64_t lanes = hn::Lanes(Tag<A>());
  return width / lanes * lanes;
}

/// out = x . k for four k. The columns left over are summed one by one.
template <typename T, typename A>
HWY_INLINE void dot_four_rows(const T* k0, const T* k1, const T* k2, const T* k3,
                              const A* HWY_RESTRICT x, int64_t width, A* HWY_RESTRICT out) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d), whole = whole_columns<A>(width);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (int64_t c = 0; c < whole; c += lanes) {
    const auto q = hn::LoadU(d, x + c);
    s0 = hn::MulAdd(q, load_as(k0 + c), s0);
    s1 = hn::MulAdd(q, load_as(k1 + c), s1);
    s2 = hn::MulAdd(q, load_as(k2 + c), s2);
    s3 = hn::MulAdd(q, load_as(k3 + c), s3);
  }
  store_sums<A>(s0, s1, s2, s3, A{1}, out);
  for (int64_t c = whole; c < width; ++c) {
    out[0] += x[c] * static_cast<A>(k0[c]);
    out[1] += x[c] * static_cast<A>(k1[c]);
    out[2] += x[c] * static_cast<A>(k2[c]);
    out[3] += x[c] * static_cast<A>(k3[c]);
  }
}

template <typename T, typename A = Accumulator<T>>
void dots(const HeldRows<T>& rows, const A* HWY_RESTRICT x, int64_t begin, int64_t end,
          A* HWY_RESTRICT out) {
  for (int64_t r = begin; r < end; r += 4) {
    const auto row = [&](int64_t n) { return row_at(rows, std::min(r + n, end - 1)); };
    A four[4];
    dot_four_rows(row(0), row(1), row(2), row(3), x, rows.width, four);
    std::copy_n(four, std::min<int64_t>(4, end - r), out + r);
  }
}

template <typename T, typename A = Accumulator<T>>
void sum(const HeldRows<T>& rows, const A* HWY_RESTRICT p, int64_t begin, int64_t end,
         A* HWY_RESTRICT y) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d), whole = whole_columns<A>(rows.width);
  by_columns<A>(0, whole, [&](auto count, int64_t c) HWY_ATTR {
    Vec<A> s[count];
    for (int64_t v = 0; v < count; ++v) s[v] = hn::LoadU(d, y + c + v * lanes);
    for (int64_t r = begin; r < end; ++r) {
      const T* row = row_at(rows, r) + c;
      const auto weight = hn::Set(d, p[r]);
      for (int64_t v = 0; v < count; ++v) {
        s[v] = hn::MulAdd(weight, load_as(row + v * lanes), s[v]);
      }
    }
    for (int64_t v = 0; v < count; ++v) hn::StoreU(s[v], d, y + c + v * lanes);
  });
  for (int64_t r = begin; r < end && whole < rows.width; ++r) {
    const T* row = row_at(rows, r);
    for (int64_t c = whole; c < rows.width; ++c) y[c] += p[r] * static_cast<A>(row[c]);
  }
}

template <typename A>
void softmax_of(A* p, int64_t n) {
  softmax(p, n);
}

template <typename T>
AttentionStepLoops<T> table() {
  return {dots<T>, softmax_of<Accumulator<T>>, sum<T>};
}
// What is exported cannot be a template.
AttentionStepLoops<float> table_float() { return table<float>(); }
AttentionStepLoops<double> table_double() { return table<double>(); }
AttentionStepLoops<Bfloat16> table_bfloat16() { return table<Bfloat16>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hopmix::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(table_float);
HWY_EXPORT(table_double);
HWY_EXPORT(table_bfloat16);

template <>
AttentionStepLoops<float> attention_step_loops() {
  return HWY_DYNAMIC_DISPATCH(table_float)();
}
template <>
AttentionStepLoops<double> attention_step_loops() {
  return HWY_DYNAMIC_DISPATCH(table_double)();
}
template <>
AttentionStepLoops<Bfloat16> attention_step_loops() {
  return HWY_DYNAMIC_DISPATCH(table_bfloat16)();
}

}  // namespace hopmix::kernels
#endif
