// A linear map of many rows: y = x W^T + b, as of a layer.
//
//   x [rows, inputs], W [outputs, inputs], b [outputs] or null, y [rows, outputs]
//
// The outputs may be parts that lie apart, y_p [rows, width_p] each, whose widths add up to
// `outputs`: a kernel that reads one part finds it in one piece. Sums are float for bfloat16. Work
// is cut the same way for any number of threads, and so are the bits.
#pragma once

#include <cstdint>
#include <vector>

#include "hopmix/kernels/base/bfloat16.h"

namespace hopmix::kernels {

template <typename T>
struct LinearInputs {
  const T *x, *weight, *bias;
  int64_t rows, inputs, outputs;
};

/// [rows, width]; in a backward null: a gradient of 0.
template <typename T>
struct LinearPart {
  T* data;
  int64_t width;
};

template <typename T>
void linear_forward(const LinearInputs<T>& in, const std::vector<LinearPart<T>>& y);

/// dx = dy W, dW = dy^T x, db = the sum of the rows of dy; null: not wanted.
template <typename T>
void linear_backward(const LinearInputs<T>& in, const std::vector<LinearPart<const T>>& dy, T* dx,
                     T* dweight, T* dbias);

}  // namespace hopmix::kernels
