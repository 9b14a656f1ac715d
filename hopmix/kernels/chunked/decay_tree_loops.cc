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

template <typename A>
void join(int64_t n, int64_t width, int64_t h, const A* q, const A* k, const A* decays,
          const A* sums, A* q2, A* k2, A* sums2) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  const auto copy = [&](const A* from, A* to, int64_t begin, int64_t end) HWY_ATTR {
    if (from != to) std::copy(from + begin * width, from + end * width, to + begin * width);
  };
  const auto scale = [&](const A* from, A* to, int64_t begin, int64_t end, const A* by) HWY_ATTR {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t c = 0; c < width; c += lanes) {
        const int64_t at = i * width + c;
        hn::StoreU(hn::Mul(hn::LoadU(d, from + at), hn::LoadU(d, by + c)), d, to + at);
      }
    }
  };
  for_neighbours(
      n, h,
      [&](int64_t left, int64_t right, int64_t first, int64_t middle, int64_t end) HWY_ATTR {
        copy(q, q2, first, middle);
        scale(q, q2, middle, end, decays + left * width);
        scale(k, k2, first, middle, decays + right * width);
        copy(k, k2, middle, end);
        for (int64_t c = 0; c < width; c += lanes) {
          const auto sum = hn::Add(hn::LoadU(d, sums + left * width + c),
                                   hn::LoadU(d, sums + right * width + c));
          hn::StoreU(sum, d, sums2 + left / 2 * width + c);
        }
      },
      [&](int64_t block, int64_t first) HWY_ATTR {
        copy(q, q2, first, n);
        copy(k, k2, first, n);
        std::copy_n(sums + block * width, width, sums2 + block / 2 * width);
      });
}

template <typename A>
void part(int64_t n, int64_t width, int64_t h, const A* q2, const A* k2, const A* decays,
          const A* e2, A* d_q, A* d_k, A* e) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  // grad *= by for rows [begin, end) of a column; the sum of x o grad before.
  const auto pass = [&](const A* x, A* grad, int64_t begin, int64_t end, int64_t c, Vec<A> by)
                        HWY_ATTR {
                          auto sum = hn::Zero(d);
                          for (int64_t i = begin; i < end; ++i) {
                            const auto g = hn::LoadU(d, grad + i * width + c);
                            sum = hn::MulAdd(hn::LoadU(d, x + i * width + c), g, sum);
                            hn::StoreU(hn::Mul(g, by), d, grad + i * width + c);
                          }
                          return sum;
                        };
  for_neighbours(
      n, h,
      [&](int64_t left, int64_t right, int64_t first, int64_t middle, int64_t end) HWY_ATTR {
        for (int64_t c = 0; c < width; c += lanes) {
          const auto both = hn::LoadU(d, e2 + left / 2 * width + c);
          const auto of_left = hn::LoadU(d, decays + left * width + c);
          const auto of_right = hn::LoadU(d, decays + right * width + c);
          hn::StoreU(hn::Add(both, pass(q2, d_q, middle, end, c, of_left)), d,
                     e + left * width + c);
          hn::StoreU(hn::Add(both, pass(k2, d_k, first, middle, c, of_right)), d,
                     e + right * width + c);
        }
      },
      [&](int64_t block, int64_t)
          HWY_ATTR { std::copy_n(e2 + block / 2 * width, width, e + block * width); });
}

template <typename A>
void leaves(int64_t n, int64_t width, const A* q, const A* k, const A* q1, const A* decays,
            const A* own, A* d_q, A* d_k, A* e) {
  const Tag<A> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t i = 0; i < n; ++i) {
    const auto self = hn::Set(d, own[i]);
    for (int64_t c = i * width; c < (i + 1) * width; c += lanes) {
      const auto g = hn::LoadU(d, d_q + c);
      hn::StoreU(hn::MulAdd(hn::LoadU(d, q1 + c), g, hn::LoadU(d, e + c)), d, e + c);
      hn::StoreU(hn::MulAdd(self, hn::LoadU(d, k + c), hn::Mul(g, hn::LoadU(d, decays + c))), d,
                 d_q + c);
      hn::StoreU(hn::MulAdd(self, hn::LoadU(d, q + c), hn::LoadU(d, d_k + c)), d, d_k + c);
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
  return {powers<A>, join<A>, part<A>, leaves<A>, behind<A>};
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
