// The softmax over one row of a pattern, and its gradient.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "hopmix/kernels/vec.h"

namespace hopmix::kernels {

/// p_r = softmax over r of scale * q . k[cols[r]]. Only the listed keys are touched: there is no
/// mask value that could let others leak in, and a row without reads is just empty.
template <typename A>
void softmax_row(const A* q, const Head<A>& k, std::span<const int32_t> cols, A scale,
                 std::vector<A>& p) {
  p.resize(cols.size());
  A largest = -std::numeric_limits<A>::infinity();
  for (size_t r = 0; r < cols.size(); ++r) {
    p[r] = scale * dot(q, k[cols[r]], k.width);
    largest = std::max(largest, p[r]);
  }
  A sum = 0;
  for (A& x : p) {
    x = std::exp(x - largest);
    sum += x;
  }
  for (A& x : p) x /= sum;
}

/// From u = dLoss/dp to the queries and keys: ds_r = p_r (u_r - sum p u), dq += scale ds_r k_j,
/// dk_j += scale ds_r q.
template <typename A>
void softmax_row_backward(const std::vector<A>& p, const std::vector<A>& u, const A* q,
                          const Head<A>& k, std::span<const int32_t> cols, A scale, A* dq,
                          Head<A>& dk) {
  const A mean = dot(p.data(), u.data(), static_cast<int64_t>(p.size()));
  for (size_t r = 0; r < cols.size(); ++r) {
    const A ds = scale * p[r] * (u[r] - mean);
    axpy(ds, k[cols[r]], dq, k.width);
    axpy(ds, q, dk[cols[r]], k.width);
  }
}

}  // namespace hopmix::kernels
