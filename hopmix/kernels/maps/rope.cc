#include "hopmix/kernels/maps/rope.h"

#include "hopmix/kernels/base/operands.h"
#include "hopmix/kernels/base/parallel.h"

namespace hopmix::kernels {

template <typename T>
void rope(const RopeInputs<T>& in, bool back, T* y) {
  using A = Accumulator<T>;
  const int64_t width = 2 * in.pairs, tokens = in.batch * in.time;
  constexpr int64_t kTokens = 64;  // of a task
  parallel_tasks((tokens + kTokens - 1) / kTokens, tokens * in.heads * width, [&](int64_t task) {
    const int64_t end = std::min(tokens, (task + 1) * kTokens);
    for (int64_t token = task * kTokens; token < end; ++token) {
      const int64_t angle = (in.each_row ? token : token % in.time) * in.pairs;
      const T *cos = in.cos + angle, *sin = in.sin + angle;
      const A sign = back ? -1 : 1;
      for (int64_t h = 0; h < in.heads; ++h) {
        const T* from = in.x + (token * in.heads + h) * width;
        T* to = y + (token * in.heads + h) * width;
#pragma omp simd
        for (int64_t p = 0; p < in.pairs; ++p) {
          const A a = convert<A>(from[2 * p]), b = convert<A>(from[2 * p + 1]);
          const A c = convert<A>(cos[p]), s = sign * convert<A>(sin[p]);
          to[2 * p] = convert<T>(a * c - b * s);
          to[2 * p + 1] = convert<T>(a * s + b * c);
        }
      }
    }
  });
}

template void rope(const RopeInputs<float>&, bool, float*);
template void rope(const RopeInputs<double>&, bool, double*);
template void rope(const RopeInputs<Bfloat16>&, bool, Bfloat16*);

}  // namespace hopmix::kernels
