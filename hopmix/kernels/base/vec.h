// Loops over the width of a head, and one head of one sequence as a contiguous matrix.
#pragma once

#include <cstdint>
#include <vector>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/index.h"
#include "hopmix/kernels/base/sequences.h"

namespace hopmix::kernels {

template <typename A>
A dot(const A* x, const A* y, int64_t width) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < width; ++c) sum += x[c] * y[c];
  return sum;
}

/// y += a x
template <typename A>
void axpy(A a, const A* x, A* y, int64_t width) {
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) y[c] += a * x[c];
}

/// [length, width] in the type of sums. Its rows are read in random order, so a contiguous copy
/// pays off.
template <typename A>
struct Head {
  int64_t length = 0, width = 0;
  std::vector<A> data;

  Head(int64_t rows, int64_t columns) : length(rows), width(columns), data(rows * columns) {}

  A* operator[](int64_t i) { return data.data() + i * width; }
  const A* operator[](int64_t i) const { return data.data() + i * width; }
};

/// One head of one sequence out of x [tokens, heads, width].
template <typename T>
Head<Accumulator<T>> load_head(const T* x, const Sequences& all, const Sequence& s, int64_t heads,
                               int64_t head, int64_t width) {
  Head<Accumulator<T>> out(s.length, width);
  for (int64_t i = 0; i < s.length; ++i) {
    const T* from = x + head_offset(all.first_token(s) + i, heads, head, width);
    Accumulator<T>* to = out[i];
    for (int64_t c = 0; c < width; ++c) to[c] = static_cast<Accumulator<T>>(from[c]);
  }
  return out;
}

/// The inverse of load_head; does nothing if `x` is null.
template <typename T>
void store_head(const Head<Accumulator<T>>& from, const Sequences& all, const Sequence& s,
                int64_t heads, int64_t head, T* x) {
  if (x == nullptr) return;
  for (int64_t i = 0; i < s.length; ++i) {
    T* to = x + head_offset(all.first_token(s) + i, heads, head, from.width);
    for (int64_t c = 0; c < from.width; ++c) to[c] = static_cast<T>(from[i][c]);
  }
}

}  // namespace hopmix::kernels
