// Rotary positions (RoFormer, arXiv 2104.09864, equation 34): rotates neighbouring numbers of a
// row, as points in the plane, by an angle that depends on the row's position.
#pragma once

#include <cstdint>

#include "hopmix/kernels/base/bfloat16.h"

namespace hopmix::kernels {

/// x [batch, time, heads, 2 pairs]; cos and sin [time, pairs], or [batch, time, pairs] with
/// `each_row`.
template <typename T>
struct RopeInputs {
  const T *x, *cos, *sin;
  int64_t batch, time, heads, pairs;
  bool each_row;
};

/// (y_2p, y_2p+1) = (x_2p cos_p - x_2p+1 sin_p, x_2p sin_p + x_2p+1 cos_p). With `back`, the
/// inverse rotation, which maps the gradient of y to that of x.
template <typename T>
void rope(const RopeInputs<T>& in, bool back, T* y);

}  // namespace hopmix::kernels
