#include "hopmix/kernels/maps/mlp.h"

#include <algorithm>

#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/maps/gelu_loops.h"
#include "hopmix/kernels/maps/linear.h"
#include "hopmix/kernels/maps/panels.h"
#include "hopmix/kernels/maps/weight_gradient.h"

namespace hopmix::kernels {
namespace {

template <typename T>
int64_t entries(const MlpInputs<T>& in) {
  return (in.rows + 4) * (in.width + in.hidden + in.outputs);
}

// Calls body(first row, rows) for blocks of [begin, end).
template <typename T, typename Body>
void for_row_blocks(const MlpInputs<T>& in, int64_t begin, int64_t end, const Body& body) {
  const int64_t blocks = (end - begin + kRowBlock - 1) / kRowBlock;
  parallel_tasks(blocks, entries(in), [&](int64_t block) {
    const int64_t first = begin + block * kRowBlock;
    body(first, std::min(kRowBlock, end - first));
    release_gemm();
  });
}

// Numbers of type T as A: where they lie, or in `memory`.
template <typename T, typename A>
const A* widen(const T* x, int64_t n, const Buffer<A>& memory) {
  if constexpr (std::is_same_v<T, A>) {
    return x;
  } else {
    for (int64_t i = 0; i < n; ++i) memory[i] = convert<A>(x[i]);
    return memory.data();
  }
}

// Decoding, where most of the work is to read the weights.
template <typename T>
void few_rows_forward(const MlpInputs<T>& in, T* h, T* y) {
  using A = Accumulator<T>;
  const int64_t n = in.rows * in.hidden;
  const Buffer<T> active(n);
  const Buffer<A> wide(std::is_same_v<T, A> ? 0 : n);
  T* hidden = h == nullptr ? active.data() : h;
  linear_forward<T>({in.x, in.rows, in.width}, {{in.up, in.up_bias, in.hidden, hidden}});
  if constexpr (std::is_same_v<T, A>) {
    gelu_loops<A>().forward(n, hidden, active.data());
  } else {
    gelu_loops<A>().forward(n, widen(hidden, n, wide), wide.data());
    for (int64_t i = 0; i < n; ++i) active[i] = convert<T>(wide[i]);
  }
  linear_forward<T>({active.data(), in.rows, in.hidden}, {{in.down, in.down_bias, in.outputs, y}});
}

template <typename T, typename O>
void forward(const MlpInputs<T>& in, T* h, T* y) {
  using A = Accumulator<T>;
  const Panels<O> up(in.width, in.hidden), down(in.hidden, in.outputs);
  const int64_t tasks = up.count() + down.count();
  parallel_tasks(tasks, in.hidden * (in.width + in.outputs), [&](int64_t task) {
    if (task < up.count()) {
      up.pack_transposed(matrix(in.up, in.hidden, in.width), task);
    } else {
      down.pack_transposed(matrix(in.down, in.outputs, in.hidden), task - up.count());
    }
  });
  const GeluLoops<A> gelu = gelu_loops<A>();
  for_row_blocks(in, 0, in.rows, [&](int64_t first, int64_t n) {
    const Buffer<O> x_memory(kRowBlock * padded(in.width));
    const Buffer<O> active_memory(kRowBlock * padded(in.hidden));
    const Buffer<T> hidden(h == nullptr ? kRowBlock * in.hidden : 0);
    const Buffer<A> active(kRowBlock * in.hidden), sums(kRowBlock * gemm_engine().panel);
    int64_t stride;
    const O* left = left_factor<O>(matrix(in.x, in.rows, in.width), first, n, x_memory, &stride);
    T* rows = h == nullptr ? hidden.data() : h + first * in.hidden;
    for (int64_t p = 0; p < up.count(); ++p) {
      make_columns<T, O>(up, p, n, left, stride, in.up_bias + up.first(p), rows + up.first(p),
                         in.hidden, sums);
    }
    gelu.forward(n * in.hidden, widen(rows, n * in.hidden, active), active.data());
    if constexpr (!std::is_same_v<T, A>) {  // as few_rows_forward() has it
      for (int64_t i = 0; i < n * in.hidden; ++i) active[i] = convert<A>(convert<T>(active[i]));
    }
    left = left_factor<O>(matrix<A>(active.data(), n, in.hidden), 0, n, active_memory, &stride);
    T* out = y + first * in.outputs;
    for (int64_t p = 0; p < down.count(); ++p) {
      make_columns<T, O>(down, p, n, left, stride, in.down_bias + down.first(p),
                         out + down.first(p), in.outputs, sums);
    }
  });
}

template <typename T, typename O>
void backward(const MlpInputs<T>& in, const T* h, const T* dy, const MlpGradients<T>& out) {
  using A = Accumulator<T>;
  using Gradient = WeightGradient<T, O>;
  const Panels<O> up(in.hidden, in.width), down(in.outputs, in.hidden);
  parallel_tasks(up.count() + down.count(), in.hidden * (in.width + in.outputs), [&](int64_t task) {
    if (task < up.count()) {
      up.pack(matrix(in.up, in.hidden, in.width), task);
    } else {
      down.pack(matrix(in.down, in.outputs, in.hidden), task - up.count());
    }
  });
  const GeluLoops<A> gelu = gelu_loops<A>();
  Gradient of_up(in.hidden, in.width, out.up, out.up_bias);
  Gradient of_down(in.outputs, in.hidden, out.down, out.down_bias);
  // What the activation gave, and the gradients of what it took, of a chunk of rows.
  const Buffer<A> active(Gradient::kChunkRows * in.hidden), d(Gradient::kChunkRows * in.hidden);
  for (int64_t begin = 0; begin < in.rows; begin += Gradient::kChunkRows) {
    const int64_t end = std::min(in.rows, begin + Gradient::kChunkRows);
    for_row_blocks(in, begin, end, [&](int64_t first, int64_t n) {
      const Buffer<O> memory(kRowBlock * std::max(padded(in.outputs), padded(in.hidden)));
      const Buffer<A> wide(std::is_same_v<T, A> ? 0 : kRowBlock * in.hidden);
      const Buffer<A> sums(kRowBlock * gemm_engine().panel);
      A* d_hidden = d + (first - begin) * in.hidden;
      int64_t stride;
      const O* left = left_factor<O>(matrix(dy, in.rows, in.outputs), first, n, memory, &stride);
      for (int64_t p = 0; p < down.count(); ++p) {
        down.multiply_by(p, n, left, stride, d_hidden + down.first(p), in.hidden, /*add=*/false);
      }
      gelu.backward(n * in.hidden, widen(h + first * in.hidden, n * in.hidden, wide), d_hidden,
                    active + (first - begin) * in.hidden, d_hidden);
      if (out.x == nullptr) return;
      left = left_factor<O>(matrix<A>(d_hidden, n, in.hidden), 0, n, memory, &stride);
      for (int64_t p = 0; p < up.count(); ++p) {
        make_columns<T, O>(up, p, n, left, stride, nullptr, out.x + first * in.width + up.first(p),
                           in.width, sums);
      }
    });
    const int64_t n = end - begin;
    of_down.add(matrix(dy + begin * in.outputs, n, in.outputs),
                matrix<A>(active.data(), n, in.hidden));
    of_up.add(matrix<A>(d.data(), n, in.hidden), matrix(in.x + begin * in.width, n, in.width));
  }
  of_down.finish();
  of_up.finish();
}

}  // namespace

template <typename T>
void mlp_forward(const MlpInputs<T>& in, T* h, T* y) {
  if (in.rows == 0) return;
  if (in.rows <= kFewRows) return few_rows_forward(in, h, y);
  with_operands<T>([&]<typename O>() { forward<T, O>(in, h, y); });
}

template <typename T>
void mlp_backward(const MlpInputs<T>& in, const T* h, const T* dy, const MlpGradients<T>& out) {
  with_operands<T>([&]<typename O>() { backward<T, O>(in, h, dy, out); });
}

template void mlp_forward(const MlpInputs<float>&, float*, float*);
template void mlp_forward(const MlpInputs<double>&, double*, double*);
template void mlp_forward(const MlpInputs<Bfloat16>&, Bfloat16*, Bfloat16*);
template void mlp_backward(const MlpInputs<float>&, const float*, const float*,
                           const MlpGradients<float>&);
template void mlp_backward(const MlpInputs<double>&, const double*, const double*,
                           const MlpGradients<double>&);
template void mlp_backward(const MlpInputs<Bfloat16>&, const Bfloat16*, const Bfloat16*,
                           const MlpGradients<Bfloat16>&);

}  // namespace hopmix::kernels
