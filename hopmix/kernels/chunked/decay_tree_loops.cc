#include "hopmix/kernels/chunked/decay_tree_loops.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "hopmix/kernels/chunked/decay_tree_loops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hopmix/kernels/base/exp-inl.h"
#include "hopmix/kernels/rows/row_ops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hopmix::kernels {
namespace HWY_NAMESPACE {
namespace {

template <typename A>
void powers(const A* x, int64_t size, A* y) {
  const Tag<A> d;
  for (int64_t c = 0; c < size; c += static_cast<int64_t>(hn::Lanes(d))) {
    hn::StoreU(exp_of(hn::LoadU(d, x + c)), d, y + c);
  }
}

// Calls f(L, R, first of L, of R, behind R), in blocks and rows, for the neighbours of a level, and
// alone(block, its first row) for a last block without one.
template <typename F, typename Alone>
HWY_INLINE void for_neighbours(int64_t n, int64_t h, const F& f, const Alone& alone) {
  for (int64_t first = 0, block = 0; first < n; first += 2 * h, block += 2) {
    const int64_t middle = first + h;
    if (middle < n) {
      f(block, block + 1, first, middle, std::min(middle + h, n));
    } else {
      alone(block, first);
    }
  }
}

// to = from, times a row of `by` in rows [begin, end).
template <typename A>
HWY_INLINE void scale(const A* from, A* to, int64_t begin, int64_t end, int64_t width,
                      const A* by) {
  const Tag<A> d;
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t c = 0; c < width; c += static_cast<int64_t>(hn::Lanes(d))) {
      const int64_t at = i * width + c;
      hn::StoreU(hn::Mul(hn::LoadU(d, from + at), hn::LoadU(d, by + c)), d, to + at);
    }
  }
}

template <typename A>
void copy(const A* from, A* to, int64_t begin, int64_t end, int64_t width) {
  if (from != to) std::copy(from + begin * width, from + end * width, to + begin * width);
}

template <typename A>
void join_readers(int64_t n, int64_t width, int64_t h, const A* q, const A* decays, A* q2) {
  for_neighbours(
      n, h,
      [&](int64_t left, int64_t, int64_t first, int64_t middle, int64_t end) HWY_ATTR {
        copy(q, q2, first, middle, width);
        scale(q, q2, middle, end, width, decays + left * width);
      },
      [&](int64_t, int64_t first) HWY_ATTR { copy(q, q2, first, n, width); });
}

template <typename A>
void join_keys(int64_t n, int64_t width, int64_t h, const A* k, const A* decays, A* k2) {
  for_neighbours(
      n, h,
      [&](int64_t, int64_t right, int64_t first, int64_t middle, int64_t end) HWY_ATTR {
        scale(k, k2, first, middle, width, decays + right * width);
        copy(k, k2, middle, end, width);
      },
      [&](int64_t, int64_t first) HWY_ATTR { copy(k, k2, first, n, width); });
}

template <typename A>
void join_sums(int64_t n, int64_t width, int64_t h, A* sums) {
  const Tag<A> d;
  for_neighbours(
      n, h,
      [&](int64_t left, int64_t right, int64_t, int64_t, int64_t) HWY_ATTR {
        for (int64_t c = 0; c < width; c += static_cast<int64_t>(hn::Lanes(d))) {
          const auto sum = hn::Add(hn::LoadU(d, sums + left * width + c),
                                   hn::LoadU(d, sums + right * width + c));
          hn::StoreU(sum, d, sums + left / 2 * width + c);
        }
      },
      [&](int64_t block, int64_t)
          HWY_ATTR { copy(sums + block * width, sums + block / 2 * width, 0, 1, width); });
}

template <typename A>
void spread(int64_t n, int64_t width, int64_t h, const A* e2, A* e) {
  for (int64_t block = 0; block * h < n; ++block) {
    std::copy_n(e2 + block / 2 * width, width, e + block * width);
  }
}

// e += the sum of x o grad over rows [begin, end), then grad *= by.
template <typename A>
HWY_INLINE void part(const A* x, A* grad, int64_t begin, int64_t end, int64_t width, const A* by,
                     A* e) {
  const Tag<A> d;
  for (int64_t c = 0; c < width; c += static_cast<int64_t>(hn::Lanes(d))) {
    const auto factor = hn::LoadU(d, by + c);
    auto sum = hn::Zero(d);
    for (int64_t i = begin; i < end; ++i) {
      const auto g = hn::LoadU(d, grad + i * width + c);
      sum = hn::MulAdd(hn::LoadU(d, x + i * width + c), g, sum);
      hn::StoreU(hn::Mul(g, factor), d, grad + i * width + c);
    }
    hn::StoreU(hn::Add(hn::LoadU(d, e + c), sum), d, e + c);
  }
}

template <typename A>
void part_readers(int64_t n, int64_t width, int64_t h, const A* q2, const A* decays, A* d_q, A* e) {
  for_neighbours(
      n, h,
      [&](int64_t left, int64_t, int64_t, int64_t middle, int64_t end)
          HWY_ATTR { part(q2, d_q, middle, end, width, decays + left * width, e + left * width); },
      [](int64_t, int64_t) {});
}

template <typename A>
void part_keys(int64_t n, int64_t width, int64_t h, const A* k2, const A* decays, A* d_k, A* e) {
  for_neighbours(
      n, h,
      [&](int64_t, int64_t right, int64_t first, int64_t middle, int64_t) HWY_ATTR {
        part(k2, d_k, first, middle, width, decays + right * width, e + right * width);
      },
      [](int64_t, int64_t) {});
}

template <typename A>
void leaves(int64_t n, int64_t width, const A* q1, const A* decays, A* d_q, A* e) {
  const Tag<A> d;
  for (int64_t c = 0; c < n * width; c += static_cast<int64_t>(hn::Lanes(d))) {
    const auto g = hn::LoadU(d, d_q + c);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, q1 + c), g, hn::LoadU(d, e + c)), d, e + c);
    hn::StoreU(hn::Mul(g, hn::LoadU(d, decays + c)), d, d_q + c);
  }
}

template <typename A>
void add_rows(int64_t n, int64_t width, const A* factor, const A* x, A* y) {
  const Tag<A> d;
  for (int64_t i = 0; i < n; ++i) {
    const auto f = hn::Set(d, factor[i]);
    for (int64_t c = i * width; c < (i + 1) * width; c += static_cast<int64_t>(hn::Lanes(d))) {
      hn::StoreU(hn::MulAdd(f, hn::LoadU(d, x + c), hn::LoadU(d, y + c)), d, y + c);
    }
  }
}

template <typename A>
void behind(int64_t n, int64_t width, const A* g, const A* k, A* decayed, A* all) {
  const Tag<A> d;
  for (int64_t c = 0; c < width; c += static_cast<int64_t>(hn::Lanes(d))) {
    auto sum = hn::Zero(d);
    for (int64_t i = (n - 1) * width + c; i >= 0; i -= width) {
      hn::StoreU(hn::Mul(exp_of(sum), hn::LoadU(d, k + i)), d, decayed + i);
      sum = hn::Add(sum, hn::LoadU(d, g + i));
    }
    hn::StoreU(exp_of(sum), d, all + c);
  }
}

template <typename A>
DecayTreeLoops<A> loops() {
  return {powers<A>,       join_readers<A>, join_keys<A>, join_sums<A>, spread<A>,
          part_readers<A>, part_keys<A>,    leaves<A>,    add_rows<A>,  behind<A>};
}
DecayTreeLoops<float> loops_float() { return loops<float>(); }
DecayTreeLoops<double> loops_double() { return loops<double>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace hopmix::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hopmix::kernels {

HWY_EXPORT(loops_float);
HWY_EXPORT(loops_double);

template <>
DecayTreeLoops<float> decay_tree_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_float)();
}
template <>
DecayTreeLoops<double> decay_tree_loops() {
  return HWY_DYNAMIC_DISPATCH(loops_double)();
}

}  // namespace hopmix::kernels
#endif
