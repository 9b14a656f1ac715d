// The computations of the dense kernels as defined: one head of one sequence, whole matrices, in
// double.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "hopmix/kernels/base/reference.h"

namespace hopmix::kernels::reference {

/// The output, and the gradients of q, k, v and of the numbers of each token.
struct DenseResults {
  Matrix y, q, k, v;
  std::vector<Matrix> numbers = {};
};

/// 1 for j < i, and with `self` for j = i.
inline Matrix triangle(int64_t n, bool self) {
  Matrix mask(n, n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < i + (self ? 1 : 0); ++j) mask(i, j) = 1;
  }
  return mask;
}

inline DenseResults attention(const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& g,
                              double scale) {
  const Matrix p = masked_softmax(q, k, scale, triangle(q.rows, true));
  const QueryKeyGradients qk = masked_softmax_gradients(q, k, scale, p, multiply(g, transpose(v)));
  return {multiply(p, v), qk.q, qk.k, multiply(transpose(p), g)};
}

/// W = (I - gamma M)^{-1} V and Y = (1 - gamma) M W, M lower triangular; dLoss/dV and dLoss/dM.
struct Shares {
  Matrix y, v, m;
};
inline Shares shares(const Matrix& m, const Matrix& v, double gamma, const Matrix& g) {
  Matrix w = v;
  for (int64_t i = 0; i < w.rows; ++i) {
    for (int64_t c = 0; c < w.cols; ++c) {
      for (int64_t j = 0; j < i; ++j) w(i, c) += gamma * m(i, j) * w(j, c);
      w(i, c) /= 1 - gamma * m(i, i);
    }
  }
  // l = dLoss/dW = M^T h with h = (1 - gamma) G + gamma l.
  Matrix l(v.rows, v.cols), h = scaled(1 - gamma, g);
  for (int64_t j = v.rows - 1; j >= 0; --j) {
    for (int64_t c = 0; c < v.cols; ++c) {
      double sum = m(j, j) * h(j, c);
      for (int64_t i = j + 1; i < v.rows; ++i) sum += m(i, j) * h(i, c);
      l(j, c) = sum / (1 - gamma * m(j, j));
      h(j, c) += gamma * l(j, c);
    }
  }
  return {scaled(1 - gamma, multiply(m, w)), l, multiply(h, transpose(w))};
}

inline DenseResults chacal(const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& g,
                           double gamma, double scale) {
  const Matrix p = masked_softmax(q, k, scale, triangle(q.rows, true));
  const Shares s = shares(p, v, gamma, g);
  const QueryKeyGradients qk = masked_softmax_gradients(q, k, scale, p, s.m);
  return {s.y, qk.q, qk.k, s.v};
}

/// chacal with M_ij = A_ij for j in the block of i, and otherwise A_is a_BC / b: how much i reads
/// of its summary times the share of j in that summary.
inline DenseResults block_chacal(const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& g,
                                 double gamma, int64_t b, double scale) {
  const int64_t n = q.rows, width = q.cols, blocks = (n + b - 1) / b;
  Matrix first(blocks, width), mean(blocks, width);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < width; ++c) {
      if (i % b == 0) first(i / b, c) = q(i, c);
      mean(i / b, c) += k(i, c) / static_cast<double>(b);
    }
  }
  const Matrix earlier = triangle(blocks, false);
  const Matrix a = masked_softmax(first, mean, scale, earlier), s = multiply(a, mean);
  // Keys: all tokens, then the summaries.
  Matrix keys(n + blocks, width), seen(n, n + blocks);
  std::copy(k.data.begin(), k.data.end(), keys.data.begin());
  std::copy(s.data.begin(), s.data.end(), keys.data.begin() + n * width);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = i / b * b; j <= i; ++j) seen(i, j) = 1;
    if (i >= b) seen(i, n + i / b) = 1;
  }
  const Matrix p = masked_softmax(q, keys, scale, seen);
  Matrix m(n, n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      m(i, j) =
          j / b == i / b ? p(i, j) : p(i, n + i / b) * a(i / b, j / b) / static_cast<double>(b);
    }
  }
  const Shares one = shares(m, v, gamma, g);

  Matrix dp(n, n + blocks), da(blocks, blocks);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      const double dm = one.m(i, j) / static_cast<double>(b);
      if (j / b == i / b) {
        dp(i, j) = one.m(i, j);
      } else {
        dp(i, n + i / b) += dm * a(i / b, j / b);
        da(i / b, j / b) += dm * p(i, n + i / b);
      }
    }
  }
  QueryKeyGradients qk = masked_softmax_gradients(q, keys, scale, p, dp);
  Matrix ds(blocks, width), dk(n, width);
  std::copy_n(qk.k.data.begin(), n * width, dk.data.begin());
  std::copy_n(qk.k.data.begin() + n * width, blocks * width, ds.data.begin());
  const Matrix of_a = multiply(ds, transpose(mean));
  for (size_t x = 0; x < da.data.size(); ++x) da.data[x] += of_a.data[x];
  const QueryKeyGradients summaries = masked_softmax_gradients(first, mean, scale, a, da);
  const Matrix dmean = multiply(transpose(a), ds);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < width; ++c) {
      if (i % b == 0) qk.q(i, c) += summaries.q(i / b, c);
      dk(i, c) += (dmean(i / b, c) + summaries.k(i / b, c)) / static_cast<double>(b);
    }
  }
  return {one.y, qk.q, dk, one.v};
}

}  // namespace hopmix::kernels::reference
