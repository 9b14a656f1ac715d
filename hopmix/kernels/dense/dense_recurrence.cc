#include "hopmix/kernels/dense/dense_recurrence.h"

#include "hopmix/kernels/dense/dense_heads.h"

namespace hopmix::kernels {
namespace {

template <typename T>
DenseCall<T> call_of(const DenseRecurrenceInputs<T>& in) {
  return {in.q,           in.k,           in.heads, in.kv_heads, in.key_width,
          in.value_width, /*self=*/false, in.scale, in.sequences};
}

// One token's numbers and vectors.
template <typename T>
struct Token {
  using A = Accumulator<T>;
  const T* v;
  int64_t scalar, row;  // offsets into [B,T,H] and [B,T,H,DV]
  A gate, d, d_self;

  Token(const DenseRecurrenceInputs<T>& in, const HeadWork<A>& work, int64_t i)
      : v(in.v + work.at(i, in.kv_heads, work.kv_head, in.value_width)),
        scalar(work.at(i, in.heads, work.head, 1)),
        row(scalar * in.value_width),
        gate(static_cast<A>(in.gate[scalar])),
        d(static_cast<A>(in.d[scalar])),
        d_self(static_cast<A>(in.d_self[scalar])) {}
};

}  // namespace

template <typename T>
void dense_recurrence(const DenseRecurrenceInputs<T>& in, T* y,
                      const DenseKept<Accumulator<T>>& kept) {
  using A = Accumulator<T>;
  const auto prepare = [&](const HeadWork<A>& work) {
    for (int64_t i = 0; i < work.length; ++i) {
      const Token<T> token(in, work, i);
      work.gate[i] = token.gate;
      A* c = work.w + i * work.values;
#pragma omp simd
      for (int64_t x = 0; x < in.value_width; ++x) {
        c[x] = (token.d + token.d_self) * static_cast<A>(token.v[x]);
      }
    }
  };
  const auto finish = [&](const HeadWork<A>& work) {
    for (int64_t i = 0; i < work.length; ++i) {
      const Token<T> token(in, work, i);
      const A* mix = work.mix + i * work.values;
      T* out = y + token.row;
#pragma omp simd
      for (int64_t x = 0; x < in.value_width; ++x) {
        out[x] = static_cast<T>(token.d_self * static_cast<A>(token.v[x]) + token.gate * mix[x]);
      }
      std::copy_n(mix, in.value_width, kept.mix + token.row);
      kept.lse[token.scalar] = work.lse[i];
    }
  };
  with_operands<T>([&]<typename O>() { dense_forward<T, O>(call_of(in), prepare, finish); });
}

template <typename T>
void dense_recurrence_backward(const DenseRecurrenceInputs<T>& in, const T* grad_y,
                               const DenseKept<const Accumulator<T>>& kept,
                               const DenseRecurrenceGradients<T>& out) {
  using A = Accumulator<T>;
  const auto prepare = [&](const HeadWork<A>& work) {
    for (int64_t i = 0; i < work.length; ++i) {
      const Token<T> token(in, work, i);
      work.gate[i] = token.gate;
      work.lse[i] = kept.lse[token.scalar];
      const int64_t at = i * work.values;
#pragma omp simd
      for (int64_t x = 0; x < in.value_width; ++x) {
        const A mix = kept.mix[token.row + x];
        work.mix[at + x] = mix;
        work.w[at + x] = (token.d + token.d_self) * static_cast<A>(token.v[x]) + token.gate * mix;
        work.l[at + x] = static_cast<A>(grad_y[token.row + x]);
      }
    }
  };
  const auto finish = [&](const HeadWork<A>& work) {
    for (int64_t i = 0; i < work.length; ++i) {
      const Token<T> token(in, work, i);
      const A *l = work.l + i * work.values, *mix = work.mix + i * work.values;
      const T* grad = grad_y + token.row;
      A* dv = work.dv + i * work.values;
      A with_mix = 0, with_v = 0, grad_with_v = 0;
#pragma omp simd reduction(+ : with_mix, with_v, grad_with_v)
      for (int64_t x = 0; x < in.value_width; ++x) {
        const A v = static_cast<A>(token.v[x]), direct = static_cast<A>(grad[x]);
        with_mix += l[x] * mix[x];
        with_v += l[x] * v;
        grad_with_v += direct * v;
        dv[x] += (token.d + token.d_self) * l[x] - token.d * direct;
      }
      if (out.gate != nullptr) out.gate[token.scalar] = static_cast<T>(with_mix);
      if (out.d != nullptr) out.d[token.scalar] = static_cast<T>(with_v - grad_with_v);
      if (out.d_self != nullptr) out.d_self[token.scalar] = static_cast<T>(with_v);
    }
  };
  with_operands<T>([&]<typename O>() {
    dense_backward<T, O>(call_of(in), {out.q, out.k, out.v}, prepare, finish);
  });
}

template void dense_recurrence(const DenseRecurrenceInputs<float>&, float*,
                               const DenseKept<float>&);
template void dense_recurrence(const DenseRecurrenceInputs<double>&, double*,
                               const DenseKept<double>&);
template void dense_recurrence(const DenseRecurrenceInputs<Bfloat16>&, Bfloat16*,
                               const DenseKept<float>&);
template void dense_recurrence_backward(const DenseRecurrenceInputs<float>&, const float*,
                                        const DenseKept<const float>&,
                                        const DenseRecurrenceGradients<float>&);
template void dense_recurrence_backward(const DenseRecurrenceInputs<double>&, const double*,
                                        const DenseKept<const double>&,
                                        const DenseRecurrenceGradients<double>&);
template void dense_recurrence_backward(const DenseRecurrenceInputs<Bfloat16>&, const Bfloat16*,
                                        const DenseKept<const float>&,
                                        const DenseRecurrenceGradients<Bfloat16>&);

}  // namespace hopmix::kernels
