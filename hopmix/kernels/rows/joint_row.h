// One row of a recurrence whose weights are a joint softmax over three kinds of term: the token's
// own input x_i, the inputs x_j that it reads and the outputs y_j that it reads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "hopmix/kernels/base/vec.h"

namespace hopmix::kernels {

/// A number for each term: logits, then weights, then dLoss/dlogits.
template <typename S>
struct JointRow {
  S self = 0;                // of x_i
  std::vector<S> direct;     // of x_j, a read each
  std::vector<S> recurrent;  // of y_j

  void resize(size_t reads) {
    direct.resize(reads);
    recurrent.resize(reads);
  }
};

/// Logits become weights; gives the log of the sum of their exponentials. A term of -inf is absent:
/// it weighs 0. If all are, all weights are 0 and the result is -inf.
template <typename S>
S joint_softmax(JointRow<S>& row) {
  S largest = row.self;
  for (const auto* part : {&row.direct, &row.recurrent}) {
    for (const S x : *part) largest = std::max(largest, x);
  }
  // Any finite shift will do for a row of nothing.
  const S shift = largest == -std::numeric_limits<S>::infinity() ? 0 : largest;
  row.self = std::exp(row.self - shift);
  S sum = row.self;
  for (auto* part : {&row.direct, &row.recurrent}) {
    for (S& x : *part) {
      x = std::exp(x - shift);
      sum += x;
    }
  }
  if (sum == 0) return largest;
  row.self /= sum;
  for (auto* part : {&row.direct, &row.recurrent}) {
    for (S& x : *part) x /= sum;
  }
  return largest + std::log(sum);
}

/// y_i = self x_i + sum_r (direct_r x_j + recurrent_r y_j), j = cols[r]; y_i is 0 before.
template <typename S, typename A>
void mix(const JointRow<S>& weights, std::span<const int32_t> cols, int64_t i, const Head<A>& x,
         Head<A>& y) {
  axpy(static_cast<A>(weights.self), x[i], y[i], x.width);
  for (size_t r = 0; r < cols.size(); ++r) {
    axpy(static_cast<A>(weights.direct[r]), x[cols[r]], y[i], x.width);
    axpy(static_cast<A>(weights.recurrent[r]), y[cols[r]], y[i], x.width);
  }
}

/// Back through mix() and joint_softmax(). lambda_i = dLoss/dy_i must be complete: rows go from
/// last to first. Adds to dx and to lambda of the tokens read; `d_logits` becomes dLoss/dlogits.
template <typename S, typename A>
void mix_backward(const JointRow<S>& weights, std::span<const int32_t> cols, int64_t i,
                  const Head<A>& x, const Head<A>& y, Head<A>& lambda, Head<A>& dx,
                  JointRow<S>& d_logits) {
  const A* l = lambda[i];
  d_logits.resize(cols.size());
  d_logits.self = dot(l, x[i], x.width);
  S mean = weights.self * d_logits.self;
  axpy(static_cast<A>(weights.self), l, dx[i], x.width);
  for (size_t r = 0; r < cols.size(); ++r) {
    d_logits.direct[r] = dot(l, x[cols[r]], x.width);
    d_logits.recurrent[r] = dot(l, y[cols[r]], x.width);
    mean += weights.direct[r] * d_logits.direct[r] + weights.recurrent[r] * d_logits.recurrent[r];
    axpy(static_cast<A>(weights.direct[r]), l, dx[cols[r]], x.width);
    axpy(static_cast<A>(weights.recurrent[r]), l, lambda[cols[r]], x.width);
  }
  d_logits.self = weights.self * (d_logits.self - mean);
  for (size_t r = 0; r < cols.size(); ++r) {
    d_logits.direct[r] = weights.direct[r] * (d_logits.direct[r] - mean);
    d_logits.recurrent[r] = weights.recurrent[r] * (d_logits.recurrent[r] - mean);
  }
}

}  // namespace hopmix::kernels
