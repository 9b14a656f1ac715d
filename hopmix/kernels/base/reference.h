// The kernels' computations, written as their definitions: one head of one sequence, dense
// matrices, in double. Slow on purpose; the tests compare the kernels with it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

namespace hopmix::kernels::reference {

struct Matrix {
  int64_t rows, cols;
  std::vector<double> data;

  Matrix(int64_t r, int64_t c) : rows(r), cols(c), data(r * c) {}
  double& operator()(int64_t i, int64_t j) { return data[i * cols + j]; }
  double operator()(int64_t i, int64_t j) const { return data[i * cols + j]; }
};

inline Matrix transpose(const Matrix& a) {
  Matrix out(a.cols, a.rows);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.cols; ++j) out(j, i) = a(i, j);
  }
  return out;
}

inline Matrix multiply(const Matrix& a, const Matrix& b) {
  Matrix out(a.rows, b.cols);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t k = 0; k < a.cols; ++k) {
      for (int64_t j = 0; j < b.cols; ++j) out(i, j) += a(i, k) * b(k, j);
    }
  }
  return out;
}

inline Matrix scaled(double factor, Matrix a) {
  for (double& x : a.data) x *= factor;
  return a;
}

/// Y = (I - B)^{-1} A X, B strictly lower triangular: y_i = (A X)_i + sum_{j<i} B_ij y_j.
inline Matrix glr(const Matrix& a, const Matrix& b, const Matrix& x) {
  Matrix y = multiply(a, x);
  for (int64_t i = 0; i < y.rows; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      for (int64_t c = 0; c < y.cols; ++c) y(i, c) += b(i, j) * y(j, c);
    }
  }
  return y;
}

struct GlrGradients {
  Matrix a, b, x;
};

/// Lambda = (I - B)^{-T} G; dA = Lambda X^T, dB = Lambda Y^T, dX = A^T Lambda.
inline GlrGradients glr_gradients(const Matrix& a, const Matrix& b, const Matrix& x,
                                  const Matrix& g) {
  Matrix lambda = g;
  for (int64_t i = g.rows - 1; i >= 0; --i) {
    for (int64_t j = i + 1; j < g.rows; ++j) {
      for (int64_t c = 0; c < g.cols; ++c) lambda(i, c) += b(j, i) * lambda(j, c);
    }
  }
  return {multiply(lambda, transpose(x)), multiply(lambda, transpose(glr(a, b, x))),
          multiply(transpose(a), lambda)};
}

/// Row-wise softmax of scale Q K^T over the entries where mask is not 0, each counted as often as
/// mask says; other entries, and empty rows, are 0.
inline Matrix masked_softmax(const Matrix& q, const Matrix& k, double scale, const Matrix& mask) {
  Matrix p = scaled(scale, multiply(q, transpose(k)));
  for (int64_t i = 0; i < p.rows; ++i) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t j = 0; j < p.cols; ++j) {
      if (mask(i, j) > 0) largest = std::max(largest, p(i, j));
    }
    for (int64_t j = 0; j < p.cols; ++j) {
      p(i, j) = mask(i, j) > 0 ? mask(i, j) * std::exp(p(i, j) - largest) : 0;
      sum += p(i, j);
    }
    for (int64_t j = 0; j < p.cols; ++j) {
      if (mask(i, j) > 0) p(i, j) /= sum;
    }
  }
  return p;
}

struct QueryKeyGradients {
  Matrix q, k;
};

/// dS = P o (dP - the row sums of P o dP); dQ = scale dS K, dK = scale dS^T Q.
inline QueryKeyGradients masked_softmax_gradients(const Matrix& q, const Matrix& k, double scale,
                                                  const Matrix& p, const Matrix& dp) {
  Matrix ds(p.rows, p.cols);
  for (int64_t i = 0; i < p.rows; ++i) {
    double mean = 0;
    for (int64_t j = 0; j < p.cols; ++j) mean += p(i, j) * dp(i, j);
    for (int64_t j = 0; j < p.cols; ++j) ds(i, j) = p(i, j) * (dp(i, j) - mean);
  }
  return {scaled(scale, multiply(ds, k)), scaled(scale, multiply(transpose(ds), q))};
}

/// Shared coefficients: B = diag(gate) P, A = B diag(d) + diag(d_self). gate, d and d_self are [T,
/// 1].
struct SharedCoefficients {
  Matrix p, a, b;
};

inline SharedCoefficients shared_coefficients(const Matrix& q, const Matrix& k, const Matrix& gate,
                                              const Matrix& d, const Matrix& d_self, double scale,
                                              const Matrix& mask) {
  const Matrix p = masked_softmax(q, k, scale, mask);
  Matrix a = p, b = p;
  for (int64_t i = 0; i < p.rows; ++i) {
    for (int64_t j = 0; j < p.cols; ++j) {
      b(i, j) = gate(i, 0) * p(i, j);
      a(i, j) = b(i, j) * d(j, 0) + (i == j ? d_self(i, 0) : 0);
    }
  }
  return {p, a, b};
}

struct GlrAttentionGradients {
  Matrix q, k, v, gate, d, d_self;
};

/// The chain rule through shared_coefficients() and glr().
inline GlrAttentionGradients glr_attention_gradients(const Matrix& q, const Matrix& k,
                                                     const Matrix& v, const Matrix& gate,
                                                     const Matrix& d, const Matrix& d_self,
                                                     double scale, const Matrix& mask,
                                                     const Matrix& g) {
  const SharedCoefficients c = shared_coefficients(q, k, gate, d, d_self, scale, mask);
  const GlrGradients direct = glr_gradients(c.a, c.b, v, g);
  Matrix dgate(gate.rows, 1), dd(d.rows, 1), dd_self(d.rows, 1), dp(c.p.rows, c.p.cols);
  for (int64_t i = 0; i < c.p.rows; ++i) {
    dd_self(i, 0) = direct.a(i, i);
    for (int64_t j = 0; j < i; ++j) {
      const double db = direct.b(i, j) + direct.a(i, j) * d(j, 0);
      dd(j, 0) += direct.a(i, j) * c.b(i, j);
      dgate(i, 0) += db * c.p(i, j);
      dp(i, j) = db * gate(i, 0);
    }
  }
  const QueryKeyGradients qk = masked_softmax_gradients(q, k, scale, c.p, dp);
  return {qk.q, qk.k, direct.x, dgate, dd, dd_self};
}

/// Z^(0) = V, Z^(r) = diag(gate) P Z^(r-1) for r = 1 .. hops. gate is [T, 1].
inline std::vector<Matrix> retrieved_recurrence(const Matrix& p, const Matrix& gate,
                                                const Matrix& v, int64_t hops) {
  std::vector<Matrix> z = {v};
  for (int64_t hop = 1; hop <= hops; ++hop) {
    Matrix next = multiply(p, z.back());
    for (int64_t i = 0; i < next.rows; ++i) {
      for (int64_t c = 0; c < next.cols; ++c) next(i, c) *= gate(i, 0);
    }
    z.push_back(next);
  }
  return z;
}

struct RetrievedRecurrenceGradients {
  Matrix q, k, v, gate;
};

/// The chain rule, from the last hop to the first, for dLoss/dZ^(r) = g[r].
inline RetrievedRecurrenceGradients retrieved_recurrence_gradients(const Matrix& q, const Matrix& k,
                                                                   const Matrix& v,
                                                                   const Matrix& gate, double scale,
                                                                   const Matrix& mask,
                                                                   const std::vector<Matrix>& g) {
  const Matrix p = masked_softmax(q, k, scale, mask);
  const int64_t hops = std::ssize(g) - 1;
  const std::vector<Matrix> z = retrieved_recurrence(p, gate, v, hops);
  Matrix dz = g.back(), dgate(gate.rows, 1), dp(p.rows, p.cols);
  for (int64_t hop = hops; hop >= 1; --hop) {
    const Matrix mixed = multiply(p, z[hop - 1]);
    for (int64_t i = 0; i < dz.rows; ++i) {
      for (int64_t c = 0; c < dz.cols; ++c) {
        dgate(i, 0) += dz(i, c) * mixed(i, c);
        dz(i, c) *= gate(i, 0);
      }
    }
    const Matrix change = multiply(dz, transpose(z[hop - 1]));
    for (size_t e = 0; e < dp.data.size(); ++e) dp.data[e] += change.data[e];
    dz = multiply(transpose(p), dz);
    for (size_t e = 0; e < dz.data.size(); ++e) dz.data[e] += g[hop - 1].data[e];
  }
  const QueryKeyGradients qk = masked_softmax_gradients(q, k, scale, p, dp);
  return {qk.q, qk.k, dz, dgate};
}

/// The coefficients of Y = A X + B Y, or their logits.
struct JointCoefficients {
  Matrix a, b;
};

/// One softmax per row over both. A logit of -inf is an absent term; an empty row is 0.
inline JointCoefficients joint_softmax(const JointCoefficients& logits) {
  const auto& [a, b] = logits;
  JointCoefficients out = logits;
  for (int64_t i = 0; i < a.rows; ++i) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t j = 0; j < a.cols; ++j) largest = std::max({largest, a(i, j), b(i, j)});
    const auto exponential = [&](double logit) {
      return std::isinf(largest) ? 0 : std::exp(logit - largest);
    };
    for (int64_t j = 0; j < a.cols; ++j) sum += exponential(a(i, j)) + exponential(b(i, j));
    for (int64_t j = 0; j < a.cols; ++j) {
      out.a(i, j) = sum == 0 ? 0 : exponential(a(i, j)) / sum;
      out.b(i, j) = sum == 0 ? 0 : exponential(b(i, j)) / sum;
    }
  }
  return out;
}

/// dLoss/dlogits from dLoss/dcoefficients: w o (dw - the row sums of w o dw).
inline JointCoefficients joint_softmax_gradients(const JointCoefficients& w, const Matrix& da,
                                                 const Matrix& db) {
  JointCoefficients out = w;
  for (int64_t i = 0; i < da.rows; ++i) {
    double mean = 0;
    for (int64_t j = 0; j < da.cols; ++j) mean += w.a(i, j) * da(i, j) + w.b(i, j) * db(i, j);
    for (int64_t j = 0; j < da.cols; ++j) {
      out.a(i, j) *= da(i, j) - mean;
      out.b(i, j) *= db(i, j) - mean;
    }
  }
  return out;
}

/// The logits of glr_softmax: d_self_i on the diagonal, s_ij + d_j, s_ij + g_i (g_j if on read).
inline JointCoefficients softmax_logits(const Matrix& q, const Matrix& k, const Matrix& d,
                                        const Matrix& d_self, const Matrix& g, double scale,
                                        const Matrix& mask, bool gate_on_read) {
  JointCoefficients out{scaled(scale, multiply(q, transpose(k))), Matrix(q.rows, q.rows)};
  for (int64_t i = 0; i < q.rows; ++i) {
    for (int64_t j = 0; j < q.rows; ++j) {
      const double s = mask(i, j) == 1 ? out.a(i, j) : -std::numeric_limits<double>::infinity();
      out.a(i, j) = i == j ? d_self(i, 0) : s + d(j, 0);
      out.b(i, j) = s + g(gate_on_read ? j : i, 0);
    }
  }
  return out;
}

struct GlrSoftmaxGradients {
  Matrix q, k, v, d, d_self, g;
};

/// The chain rule through softmax_logits(), joint_softmax() and glr().
inline GlrSoftmaxGradients glr_softmax_gradients(const Matrix& q, const Matrix& k, const Matrix& v,
                                                 const Matrix& d, const Matrix& d_self,
                                                 const Matrix& g, double scale, const Matrix& mask,
                                                 bool gate_on_read, const Matrix& grad_y) {
  const JointCoefficients w =
      joint_softmax(softmax_logits(q, k, d, d_self, g, scale, mask, gate_on_read));
  const GlrGradients direct = glr_gradients(w.a, w.b, v, grad_y);
  const JointCoefficients d_logits = joint_softmax_gradients(w, direct.a, direct.b);
  Matrix ds(q.rows, q.rows), dd(d.rows, 1), dd_self(d.rows, 1), dg(d.rows, 1);
  for (int64_t i = 0; i < q.rows; ++i) {
    dd_self(i, 0) = d_logits.a(i, i);
    for (int64_t j = 0; j < i; ++j) {
      ds(i, j) = d_logits.a(i, j) + d_logits.b(i, j);
      dd(j, 0) += d_logits.a(i, j);
      dg(gate_on_read ? j : i, 0) += d_logits.b(i, j);
    }
  }
  return {scaled(scale, multiply(ds, k)),
          scaled(scale, multiply(transpose(ds), q)),
          direct.x,
          dd,
          dd_self,
          dg};
}

/// log z_i = log of the sum of exp(log_a_ij) over j <= i and exp(log_b_ij + log z_j) over j < i,
/// and the weights: the softmax of the same logits.
struct NormalizedRecurrence {
  Matrix log_z;
  JointCoefficients weights;
};

inline NormalizedRecurrence normalized_recurrence(const Matrix& log_a, const Matrix& log_b) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  Matrix log_z(log_a.rows, 1);
  JointCoefficients logits{log_a, log_b};
  for (int64_t i = 0; i < log_a.rows; ++i) {
    double largest = kNone, sum = 0;
    for (int64_t j = 0; j < i; ++j) logits.b(i, j) += log_z(j, 0);
    for (int64_t j = 0; j <= i; ++j) largest = std::max({largest, logits.a(i, j), logits.b(i, j)});
    for (int64_t j = 0; largest > kNone && j <= i; ++j) {
      sum += std::exp(logits.a(i, j) - largest) + std::exp(logits.b(i, j) - largest);
    }
    log_z(i, 0) = largest > kNone ? largest + std::log(sum) : kNone;
  }
  return {log_z, joint_softmax(logits)};
}

struct NormalizedGradients {
  Matrix log_a, log_b, x;
};

/// With A, B the weights, Lambda = (I - B)^{-T} grad_y and (G_A, G_B) = dLoss/dlogits at fixed log
/// z: mu = (I - B)^{-T} (grad_log_z + the column sums of G_B), d log_a = G_A + A o mu, d log_b =
/// G_B + B o mu (mu_i on row i), dX = A^T Lambda.
inline NormalizedGradients normalized_gradients(const Matrix& log_a, const Matrix& log_b,
                                                const Matrix& x, const Matrix& grad_y,
                                                const Matrix& grad_log_z) {
  const JointCoefficients w = normalized_recurrence(log_a, log_b).weights;
  const GlrGradients direct = glr_gradients(w.a, w.b, x, grad_y);
  JointCoefficients g = joint_softmax_gradients(w, direct.a, direct.b);
  Matrix identity(x.rows, x.rows), sums = grad_log_z;
  for (int64_t i = 0; i < x.rows; ++i) {
    identity(i, i) = 1;
    for (int64_t j = 0; j < i; ++j) sums(j, 0) += g.b(i, j);
  }
  const Matrix mu = glr_gradients(identity, w.b, sums, sums).x;  // (I - B)^{-T} sums
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      g.a(i, j) += w.a(i, j) * mu(i, 0);
      g.b(i, j) += w.b(i, j) * mu(i, 0);
    }
  }
  return {g.a, g.b, direct.x};
}

/// One head: q, k [1,DK], v [1,DV], log_decay [DK,1] and the state before, [DK,DV].
struct MatrixStep {
  Matrix q, k, v, log_decay, state;
};

struct MatrixStepOutputs {
  Matrix o, state;
};

/// S' = diag(e^g) S, S_new = S' + k^T u, o = scale q S_new with u = beta (v - k S'), or u = v
/// without beta.
inline MatrixStepOutputs matrix_step(const MatrixStep& in, double scale, const double* beta) {
  Matrix state = in.state;
  for (int64_t c = 0; c < state.rows; ++c) {
    for (int64_t d = 0; d < state.cols; ++d) state(c, d) *= std::exp(in.log_decay(c, 0));
  }
  Matrix u = in.v;
  if (beta != nullptr) {
    const Matrix read = multiply(in.k, state);
    for (int64_t d = 0; d < u.cols; ++d) u(0, d) = *beta * (in.v(0, d) - read(0, d));
  }
  const Matrix written = multiply(transpose(in.k), u);
  for (size_t x = 0; x < state.data.size(); ++x) state.data[x] += written.data[x];
  return {scaled(scale, multiply(in.q, state)), state};
}

/// One sequence: u, delta [T,E], a [E,N], b, c [T,N], d [E,1], initial state [E,N].
struct ScanInputs {
  Matrix u, delta, a, b, c, d, initial;
};

struct ScanOutputs {
  Matrix y;
  std::vector<Matrix> h;  // [E,N] before the first token, then after each
};

/// h_t = exp(delta_t a) h_{t-1} + delta_t b_t u_t, y_t = c_t . h_t + d u_t.
inline ScanOutputs selective_scan(const ScanInputs& in) {
  ScanOutputs out{Matrix(in.u.rows, in.u.cols), {in.initial}};
  for (int64_t t = 0; t < in.u.rows; ++t) {
    Matrix h = out.h.back();
    for (int64_t e = 0; e < h.rows; ++e) {
      out.y(t, e) = in.d(e, 0) * in.u(t, e);
      for (int64_t n = 0; n < h.cols; ++n) {
        h(e, n) = std::exp(in.delta(t, e) * in.a(e, n)) * h(e, n) +
                  in.delta(t, e) * in.b(t, n) * in.u(t, e);
        out.y(t, e) += in.c(t, n) * h(e, n);
      }
    }
    out.h.push_back(h);
  }
  return out;
}

/// The chain rule, from the last token to the first, for dLoss/dy and dLoss/d(last state).
inline ScanInputs selective_scan_gradients(const ScanInputs& in, const Matrix& grad_y,
                                           const Matrix& grad_state) {
  const ScanOutputs out = selective_scan(in);
  const int64_t width = in.a.rows, states = in.a.cols;
  ScanInputs g{Matrix(in.u.rows, width),
               Matrix(in.u.rows, width),
               Matrix(width, states),
               Matrix(in.u.rows, states),
               Matrix(in.u.rows, states),
               Matrix(width, 1),
               grad_state};
  Matrix& dh = g.initial;
  for (int64_t t = in.u.rows - 1; t >= 0; --t) {
    for (int64_t e = 0; e < width; ++e) {
      const double u = in.u(t, e), delta = in.delta(t, e), dy = grad_y(t, e);
      g.u(t, e) += dy * in.d(e, 0);
      g.d(e, 0) += dy * u;
      for (int64_t n = 0; n < states; ++n) {
        const double decay = std::exp(delta * in.a(e, n)), before = out.h[t](e, n);
        g.c(t, n) += dy * out.h[t + 1](e, n);
        dh(e, n) += dy * in.c(t, n);
        g.u(t, e) += dh(e, n) * delta * in.b(t, n);
        g.b(t, n) += dh(e, n) * delta * u;
        g.delta(t, e) += dh(e, n) * (in.a(e, n) * decay * before + in.b(t, n) * u);
        g.a(e, n) += dh(e, n) * delta * decay * before;
        dh(e, n) *= decay;
      }
    }
  }
  return g;
}

}  // namespace hopmix::kernels::reference
