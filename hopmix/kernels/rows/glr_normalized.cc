#include "hopmix/kernels/rows/glr_normalized.h"

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "hopmix/kernels/base/index.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/base/vec.h"
#include "hopmix/kernels/rows/joint_row.h"

namespace hopmix::kernels {
namespace {

// Which entries of the coefficient tensors belong to one head of one sequence.
struct Place {
  int64_t diag, reads;
};

template <typename T>
Place place(const GlrNormalizedInputs<T>& in, int64_t n, int64_t head) {
  const Sequence& s = in.sequences.list[n];
  return {plane_offset(s.batch, in.heads, head, in.sequences.time, s.start),
          plane_offset(s.batch, in.heads, head, in.reads.nnz, in.reads.first[n])};
}

template <typename T>
double widen(T x) {
  return static_cast<double>(static_cast<Accumulator<T>>(x));
}

// The weights of row i, from log_z of the tokens before; gives log z_i. In double throughout: log z
// grows with the length (5e5 at 10,000 tokens of logarithms near 50), where the unit of a float
// would be several percent of a weight.
template <typename T>
double weigh(const GlrNormalizedInputs<T>& in, const Place& at, std::span<const int32_t> cols,
             int64_t i, const Head<double>& log_z, JointRow<double>& row) {
  row.resize(cols.size());
  row.self = widen(in.log_alpha_diag[at.diag + i]);
  const int64_t first = at.reads + in.reads.row_ptr[i];
  for (size_t r = 0; r < cols.size(); ++r) {
    row.direct[r] = widen(in.log_alpha[first + r]);
    row.recurrent[r] = widen(in.log_beta[first + r]) + *log_z[cols[r]];
  }
  return joint_softmax(row);
}

// log z, and y if there is one to fill.
template <typename T>
Head<double> solve(const GlrNormalizedInputs<T>& in, const Place& at, const Head<Accumulator<T>>& x,
                   Head<Accumulator<T>>* y) {
  Head<double> log_z(x.length, 1);
  std::vector<int32_t> scratch;
  JointRow<double> weights;
  for (int64_t i = 0; i < x.length; ++i) {
    const std::span<const int32_t> cols = in.rows.row(i, scratch);
    *log_z[i] = weigh(in, at, cols, i, log_z, weights);
    if (y != nullptr) mix(weights, cols, i, x, *y);
  }
  return log_z;
}

template <typename T>
int64_t entries(const GlrNormalizedInputs<T>& in) {
  return in.sequences.tokens() * in.heads * in.width;
}

}  // namespace

template <typename T>
void glr_normalized(const GlrNormalizedInputs<T>& in, T* y, Accumulator<T>* log_z) {
  using A = Accumulator<T>;
  parallel_tasks(in.sequences.count() * in.heads, entries(in), [&](int64_t task) {
    const int64_t n = task / in.heads, head = task % in.heads;
    const Sequence& s = in.sequences.list[n];
    const Head<A> x = load_head(in.x, in.sequences, s, in.heads, head, in.width);
    Head<A> solved(s.length, in.width);
    const Head<double> logs = solve(in, place(in, n, head), x, &solved);
    store_head(solved, in.sequences, s, in.heads, head, y);
    for (int64_t i = 0; i < s.length; ++i) {
      log_z[head_offset(in.sequences.first_token(s) + i, in.heads, head, 1)] =
          static_cast<A>(*logs[i]);
    }
  });
}

template <typename T>
void glr_normalized_backward(const GlrNormalizedInputs<T>& in, const T* y, const T* grad_y,
                             const Accumulator<T>* grad_log_z,
                             const GlrNormalizedGradients<T>& out) {
  using A = Accumulator<T>;
  parallel_tasks(in.sequences.count() * in.heads, entries(in), [&](int64_t task) {
    const int64_t n = task / in.heads, head = task % in.heads;
    const Sequence& s = in.sequences.list[n];
    const Place at = place(in, n, head);
    const auto load = [&](const T* from) {
      return load_head(from, in.sequences, s, in.heads, head, in.width);
    };
    const Head<A> x = load(in.x);
    Head<A> solved = kRoundsOutput<T> ? Head<A>(s.length, in.width) : load(y);
    const Head<double> log_z = solve(in, at, x, kRoundsOutput<T> ? &solved : nullptr);

    // Both are complete when token i is reached: lambda_i = dLoss/dy_i and mu_i = dLoss/dlog z_i.
    Head<A> lambda = load(grad_y);
    Head<double> mu(s.length, 1);
    const auto given = load_head(grad_log_z, in.sequences, s, in.heads, head, 1);
    std::copy(given.data.begin(), given.data.end(), mu.data.begin());
    Head<A> dx(s.length, in.width);
    std::vector<int32_t> scratch;
    JointRow<double> weights, d_logits;
    for (int64_t i = s.length - 1; i >= 0; --i) {
      const std::span<const int32_t> cols = in.rows.row(i, scratch);
      const double log_sum = weigh(in, at, cols, i, log_z, weights);
      // A row of absent terms is constant, whatever its readers ask of it.
      if (log_sum == -std::numeric_limits<double>::infinity()) *mu[i] = 0;
      mix_backward(weights, cols, i, x, solved, lambda, dx, d_logits);
      // The weights are d log z_i / dlogits.
      const auto store = [&](T* to, int64_t index, double gradient) {
        if (to != nullptr) to[index] = static_cast<T>(static_cast<A>(gradient));
      };
      store(out.log_alpha_diag, at.diag + i, d_logits.self + weights.self * *mu[i]);
      const int64_t first = at.reads + in.reads.row_ptr[i];
      for (size_t r = 0; r < cols.size(); ++r) {
        const double recurrent = d_logits.recurrent[r] + weights.recurrent[r] * *mu[i];
        store(out.log_alpha, first + r, d_logits.direct[r] + weights.direct[r] * *mu[i]);
        store(out.log_beta, first + r, recurrent);
        *mu[cols[r]] += recurrent;
      }
    }
    store_head(dx, in.sequences, s, in.heads, head, out.x);
  });
}

template void glr_normalized(const GlrNormalizedInputs<float>&, float*, float*);
template void glr_normalized(const GlrNormalizedInputs<double>&, double*, double*);
template void glr_normalized(const GlrNormalizedInputs<Bfloat16>&, Bfloat16*, float*);
template void glr_normalized_backward(const GlrNormalizedInputs<float>&, const float*, const float*,
                                      const float*, const GlrNormalizedGradients<float>&);
template void glr_normalized_backward(const GlrNormalizedInputs<double>&, const double*,
                                      const double*, const double*,
                                      const GlrNormalizedGradients<double>&);
template void glr_normalized_backward(const GlrNormalizedInputs<Bfloat16>&, const Bfloat16*,
                                      const Bfloat16*, const float*,
                                      const GlrNormalizedGradients<Bfloat16>&);

}  // namespace hopmix::kernels
