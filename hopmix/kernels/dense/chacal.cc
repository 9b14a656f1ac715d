#include "hopmix/kernels/dense/chacal.h"

#include "hopmix/kernels/dense/dense_heads.h"

namespace hopmix::kernels {
namespace {

template <typename T>
DenseCall<T> call_of(const ChacalInputs<T>& in) {
  return {in.q,           in.k,          in.heads, in.kv_heads, in.key_width,
          in.value_width, /*self=*/true, in.scale, in.sequences};
}

}  // namespace

template <typename T>
void chacal(const ChacalInputs<T>& in, T* y, const DenseKept<Accumulator<T>>& kept) {
  using A = Accumulator<T>;
  const A share = static_cast<A>(1 - in.gamma);
  const auto prepare = [&](const HeadWork<A>& work) {
    for (int64_t i = 0; i < work.length; ++i) {
      work.gate[i] = static_cast<A>(in.gamma);
      const T* from = in.v + work.at(i, in.kv_heads, work.kv_head, in.value_width);
#pragma omp simd
      for (int64_t x = 0; x < in.value_width; ++x) {
        work.w[i * work.values + x] = static_cast<A>(from[x]);
      }
    }
  };
  const auto finish = [&](const HeadWork<A>& work) {
    for (int64_t i = 0; i < work.length; ++i) {
      const int64_t row = work.at(i, in.heads, work.head, in.value_width);
      const A* mix = work.mix + i * work.values;
#pragma omp simd
      for (int64_t x = 0; x < in.value_width; ++x) y[row + x] = static_cast<T>(share * mix[x]);
      std::copy_n(mix, in.value_width, kept.mix + row);
      kept.lse[work.at(i, in.heads, work.head, 1)] = work.lse[i];
    }
  };
  with_operands<T>([&]<typename O>() { dense_forward<T, O>(call_of(in), prepare, finish); });
}

template <typename T>
void chacal_backward(const ChacalInputs<T>& in, const T* grad_y,
                     const DenseKept<const Accumulator<T>>& kept, const ChacalGradients<T>& out) {
  using A = Accumulator<T>;
  const A share = static_cast<A>(1 - in.gamma), g = static_cast<A>(in.gamma);
  const auto prepare = [&](const HeadWork<A>& work) {
    for (int64_t i = 0; i < work.length; ++i) {
      const int64_t row = work.at(i, in.heads, work.head, in.value_width), at = i * work.values;
      const T* v = in.v + work.at(i, in.kv_heads, work.kv_head, in.value_width);
      work.gate[i] = g;
      work.lse[i] = kept.lse[work.at(i, in.heads, work.head, 1)];
#pragma omp simd
      for (int64_t x = 0; x < in.value_width; ++x) {
        work.mix[at + x] = kept.mix[row + x];
        work.w[at + x] = static_cast<A>(v[x]) + g * kept.mix[row + x];
        work.h[at + x] = share * static_cast<A>(grad_y[row + x]);
      }
    }
  };
  const auto finish = [&](const HeadWork<A>& work) {
    for (int64_t x = 0; x < work.length * work.values; ++x) work.dv[x] += work.l[x];
  };
  with_operands<T>([&]<typename O>() {
    dense_backward<T, O>(call_of(in), {out.q, out.k, out.v}, prepare, finish);
  });
}

template void chacal(const ChacalInputs<float>&, float*, const DenseKept<float>&);
template void chacal(const ChacalInputs<double>&, double*, const DenseKept<double>&);
template void chacal(const ChacalInputs<Bfloat16>&, Bfloat16*, const DenseKept<float>&);
template void chacal_backward(const ChacalInputs<float>&, const float*,
                              const DenseKept<const float>&, const ChacalGradients<float>&);
template void chacal_backward(const ChacalInputs<double>&, const double*,
                              const DenseKept<const double>&, const ChacalGradients<double>&);
template void chacal_backward(const ChacalInputs<Bfloat16>&, const Bfloat16*,
                              const DenseKept<const float>&, const ChacalGradients<Bfloat16>&);

}  // namespace hopmix::kernels
