#include "hopmix/kernels/glr.h"

#include <span>
#include <vector>

#include "hopmix/kernels/index.h"
#include "hopmix/kernels/parallel.h"
#include "hopmix/kernels/vec.h"

namespace hopmix::kernels {
namespace {

// Which entries of the coefficient tensors belong to one head of one sequence.
struct Place {
  int64_t diag, reads;
};

template <typename T>
Place place(const GlrInputs<T>& in, int64_t n, int64_t head) {
  const Sequence& s = in.sequences.list[n];
  return {plane_offset(s.batch, in.heads, head, in.sequences.time, s.start),
          plane_offset(s.batch, in.heads, head, in.reads.nnz, in.reads.first[n])};
}

template <typename T>
Head<Accumulator<T>> solve(const GlrInputs<T>& in, const Place& at, const Head<Accumulator<T>>& x) {
  using A = Accumulator<T>;
  Head<A> y(x.length, x.width);
  std::vector<int32_t> scratch;
  for (int64_t i = 0; i < x.length; ++i) {
    axpy(static_cast<A>(in.alpha_diag[at.diag + i]), x[i], y[i], x.width);
    int64_t read = at.reads + in.reads.row_ptr[i];
    for (const int32_t j : in.rows.row(i, scratch)) {
      axpy(static_cast<A>(in.alpha[read]), x[j], y[i], x.width);
      axpy(static_cast<A>(in.beta[read]), y[j], y[i], x.width);
      ++read;
    }
  }
  return y;
}

template <typename T>
int64_t entries(const GlrInputs<T>& in) {
  return in.sequences.tokens() * in.heads * in.width;
}

}  // namespace

template <typename T>
void glr(const GlrInputs<T>& in, T* y) {
  parallel_tasks(in.sequences.count() * in.heads, entries(in), [&](int64_t task) {
    const int64_t n = task / in.heads, head = task % in.heads;
    const Sequence& s = in.sequences.list[n];
    const auto x = load_head(in.x, in.sequences, s, in.heads, head, in.width);
    store_head(solve(in, place(in, n, head), x), in.sequences, s, in.heads, head, y);
  });
}

template <typename T>
void glr_backward(const GlrInputs<T>& in, const T* y, const T* grad_y, const GlrGradients<T>& out) {
  using A = Accumulator<T>;
  parallel_tasks(in.sequences.count() * in.heads, entries(in), [&](int64_t task) {
    const int64_t n = task / in.heads, head = task % in.heads;
    const Sequence& s = in.sequences.list[n];
    const Place at = place(in, n, head);
    const auto load = [&](const T* from) {
      return load_head(from, in.sequences, s, in.heads, head, in.width);
    };
    const Head<A> x = load(in.x);
    const Head<A> z = kRoundsOutput<T> ? solve(in, at, x) : load(y);

    // lambda = (I - B)^{-T} grad_y, in place: when token i is reached, all its readers have added
    // to lambda_i.
    Head<A> lambda = load(grad_y);
    Head<A> dx(s.length, in.width);
    std::vector<int32_t> scratch;
    for (int64_t i = s.length - 1; i >= 0; --i) {
      const A* l = lambda[i];
      if (out.alpha_diag) out.alpha_diag[at.diag + i] = static_cast<T>(dot(l, x[i], in.width));
      axpy(static_cast<A>(in.alpha_diag[at.diag + i]), l, dx[i], in.width);
      int64_t read = at.reads + in.reads.row_ptr[i];
      for (const int32_t j : in.rows.row(i, scratch)) {
        if (out.alpha) out.alpha[read] = static_cast<T>(dot(l, x[j], in.width));
        if (out.beta) out.beta[read] = static_cast<T>(dot(l, z[j], in.width));
        if (out.x) axpy(static_cast<A>(in.alpha[read]), l, dx[j], in.width);
        axpy(static_cast<A>(in.beta[read]), l, lambda[j], in.width);
        ++read;
      }
    }
    store_head(dx, in.sequences, s, in.heads, head, out.x);
  });
}

template void glr(const GlrInputs<float>&, float*);
template void glr(const GlrInputs<double>&, double*);
template void glr(const GlrInputs<Bfloat16>&, Bfloat16*);
template void glr_backward(const GlrInputs<float>&, const float*, const float*,
                           const GlrGradients<float>&);
template void glr_backward(const GlrInputs<double>&, const double*, const double*,
                           const GlrGradients<double>&);
template void glr_backward(const GlrInputs<Bfloat16>&, const Bfloat16*, const Bfloat16*,
                           const GlrGradients<Bfloat16>&);

}  // namespace hopmix::kernels
