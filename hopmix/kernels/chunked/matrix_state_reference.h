// The recurrences of matrix_state.h as defined, for one head of one sequence in double, and their
// gradients from the last token to the first. For the tests.
#pragma once

#include <cmath>
#include <vector>

#include "hopmix/kernels/base/reference.h"

namespace hopmix::kernels::reference {

/// q, k, log_decay [T,DK], v [T,DV], beta [T,1] or empty for outer products, the state before
/// [DK,DV].
struct MatrixRecurrence {
  Matrix q, k, v, log_decay, beta, state;
  double scale;

  bool corrects() const { return beta.rows > 0; }
};

struct MatrixRecurrenceOutputs {
  Matrix o, state;
  std::vector<Matrix> decayed, states;  // S' and S of each token
  Matrix w, u;                          // the error, and what is written
};

inline MatrixRecurrenceOutputs matrix_recurrence(const MatrixRecurrence& in) {
  const int64_t keys = in.q.cols, values = in.v.cols;
  MatrixRecurrenceOutputs out{Matrix(in.v.rows, values), in.state, {}, {}, in.v, in.v};
  for (int64_t t = 0; t < in.q.rows; ++t) {
    Matrix& s = out.state;
    for (int64_t c = 0; c < keys; ++c) {
      for (int64_t d = 0; d < values; ++d) s(c, d) *= std::exp(in.log_decay(t, c));
    }
    out.decayed.push_back(s);
    for (int64_t d = 0; d < values && in.corrects(); ++d) {
      for (int64_t c = 0; c < keys; ++c) out.w(t, d) -= s(c, d) * in.k(t, c);
      out.u(t, d) = in.beta(t, 0) * out.w(t, d);
    }
    for (int64_t c = 0; c < keys; ++c) {
      for (int64_t d = 0; d < values; ++d) {
        s(c, d) += in.k(t, c) * out.u(t, d);
        out.o(t, d) += in.scale * s(c, d) * in.q(t, c);
      }
    }
    out.states.push_back(s);
  }
  return out;
}

/// Gradients of all inputs from those of o and of the last state.
inline MatrixRecurrence matrix_recurrence_gradients(const MatrixRecurrence& in, const Matrix& d_o,
                                                    const Matrix& d_state) {
  const MatrixRecurrenceOutputs made = matrix_recurrence(in);
  const int64_t time = in.q.rows, keys = in.q.cols, values = in.v.cols;
  MatrixRecurrence d{Matrix(time, keys),
                     Matrix(time, keys),
                     Matrix(time, values),
                     Matrix(time, keys),
                     Matrix(in.beta.rows, 1),
                     d_state,
                     0};
  Matrix& g = d.state;  // of S_t, then of S_{t-1}
  for (int64_t t = time - 1; t >= 0; --t) {
    const Matrix &s = made.states[t], &before = made.decayed[t];
    std::vector<double> du(values);
    for (int64_t c = 0; c < keys; ++c) {
      for (int64_t x = 0; x < values; ++x) {
        g(c, x) += in.scale * in.q(t, c) * d_o(t, x);
        d.q(t, c) += in.scale * s(c, x) * d_o(t, x);
        du[x] += g(c, x) * in.k(t, c);
        d.k(t, c) += g(c, x) * made.u(t, x);
      }
    }
    for (int64_t x = 0; x < values; ++x) {
      d.v(t, x) = du[x];
      if (!in.corrects()) continue;
      d.beta(t, 0) += du[x] * made.w(t, x);
      d.v(t, x) *= in.beta(t, 0);
      for (int64_t c = 0; c < keys; ++c) {
        d.k(t, c) -= before(c, x) * d.v(t, x);
        g(c, x) -= in.k(t, c) * d.v(t, x);
      }
    }
    for (int64_t c = 0; c < keys; ++c) {
      for (int64_t x = 0; x < values; ++x) {
        d.log_decay(t, c) += g(c, x) * before(c, x);
        g(c, x) *= std::exp(in.log_decay(t, c));
      }
    }
  }
  return d;
}

}  // namespace hopmix::kernels::reference
