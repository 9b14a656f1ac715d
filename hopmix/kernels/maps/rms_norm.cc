#include "hopmix/kernels/maps/rms_norm.h"

#include <algorithm>

#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/maps/rms_norm_loops.h"

namespace hopmix::kernels {
namespace {

// Rows to a task, whatever the number of threads: the sums into dweight have one order.
constexpr int64_t kRows = 128;

template <typename T>
int64_t task_count(const RmsNormInputs<T>& in) {
  return (in.rows + kRows - 1) / kRows;
}

// Calls body(task, its rows).
template <typename T, typename Body>
void for_each_task(const RmsNormInputs<T>& in, const Body& body) {
  parallel_tasks(task_count(in), in.rows * in.width, [&](int64_t task) {
    const int64_t begin = task * kRows;
    body(task, RmsNormRows{begin, std::min(begin + kRows, in.rows)});
  });
}

}  // namespace

template <typename T>
void rms_norm(const RmsNormInputs<T>& in, T* y) {
  const auto loops = rms_norm_loops<T>();
  for_each_task(in, [&](int64_t, const RmsNormRows& rows) { loops.forward(in, rows, y); });
}

template <typename T>
void rms_norm_backward(const RmsNormInputs<T>& in, const T* grad_y,
                       const RmsNormGradients<T>& out) {
  using A = Accumulator<T>;
  const auto loops = rms_norm_loops<T>();
  const int64_t tasks = task_count(in);
  const Buffer<A> sums(out.weight ? tasks * in.width : 0);
  for_each_task(in, [&](int64_t task, const RmsNormRows& rows) {
    A* sum = out.weight ? sums.data() + task * in.width : nullptr;
    if (sum) std::fill(sum, sum + in.width, A{0});
    loops.backward(in, rows, grad_y, out.x, sum);
  });
  for (int64_t c = 0; out.weight && c < in.width; ++c) {
    A total = 0;
    for (int64_t task = 0; task < tasks; ++task) total += sums.data()[task * in.width + c];
    out.weight[c] = static_cast<T>(total);
  }
}

template void rms_norm(const RmsNormInputs<float>&, float*);
template void rms_norm(const RmsNormInputs<double>&, double*);
template void rms_norm(const RmsNormInputs<Bfloat16>&, Bfloat16*);
template void rms_norm_backward(const RmsNormInputs<float>&, const float*,
                                const RmsNormGradients<float>&);
template void rms_norm_backward(const RmsNormInputs<double>&, const double*,
                                const RmsNormGradients<double>&);
template void rms_norm_backward(const RmsNormInputs<Bfloat16>&, const Bfloat16*,
                                const RmsNormGradients<Bfloat16>&);

}  // namespace hopmix::kernels
