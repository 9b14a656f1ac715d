#include "hopmix/kernels/maps/linear.h"

#include <algorithm>
#include <vector>

#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/maps/linear_loops.h"
#include "hopmix/kernels/maps/panels.h"
#include "hopmix/kernels/maps/weight_gradient.h"

namespace hopmix::kernels {
namespace {

// Outputs that are made at a time where the weight is read where it lies.
constexpr int64_t kOutputs = 64;

// Rows [first, first + n) of the weight of one map: as many outputs.
template <typename T>
struct OutputRows {
  LinearMap<T> map;
  int64_t first, n;
};

template <typename T>
std::vector<OutputRows<T>> output_rows(const std::vector<LinearMap<T>>& maps) {
  std::vector<OutputRows<T>> out;
  for (const LinearMap<T>& map : maps) {
    for (int64_t c = 0; c < map.outputs; c += kOutputs) {
      out.push_back({map, c, std::min(kOutputs, map.outputs - c)});
    }
  }
  return out;
}

// Row i of these outputs from value(c), and the bias.
template <typename T, typename F>
void store_row(const OutputRows<T>& at, int64_t i, const F& value) {
  using A = Accumulator<T>;
  T* y = at.map.y + i * at.map.outputs + at.first;
  const T* bias = at.map.bias == nullptr ? nullptr : at.map.bias + at.first;
  for (int64_t c = 0; c < at.n; ++c) {
    y[c] = convert<T>(bias == nullptr ? value(c) : value(c) + convert<A>(bias[c]));
  }
}

// What there is to do, as parallel_tasks counts it.
template <typename T, typename Map>
int64_t entries(const LinearInputs<T>& in, const std::vector<Map>& maps) {
  int64_t outputs = 0;
  for (const Map& map : maps) outputs += map.outputs;
  return in.rows * (in.inputs + outputs) + in.inputs * outputs / 16;
}

// Up to kDotRows rows.
template <typename T>
void dot_forward(const LinearInputs<T>& in, const std::vector<LinearMap<T>>& maps) {
  const std::vector<OutputRows<T>> all = output_rows(maps);
  using A = Accumulator<T>;
  const Buffer<A> wide(std::is_same_v<T, A> ? 0 : in.rows * in.inputs);
  const A* x;
  if constexpr (std::is_same_v<T, A>) {
    x = in.x;
  } else {
    for (int64_t i = 0; i < in.rows * in.inputs; ++i) wide[i] = convert<A>(in.x[i]);
    x = wide.data();
  }
  const LinearLoops<T> loops = linear_loops<T>();
  parallel_tasks(static_cast<int64_t>(all.size()), entries(in, maps), [&](int64_t task) {
    const OutputRows<T>& at = all[static_cast<size_t>(task)];
    A sums[kDotRows * kOutputs];
    loops.dots(in.rows, at.n, in.inputs, x, at.map.weight + at.first * in.inputs, sums, kOutputs);
    for (int64_t i = 0; i < in.rows; ++i) {
      store_row(at, i, [&](int64_t c) { return sums[i * kOutputs + c]; });
    }
  });
}

// Up to kFewRows rows, as y^T = W x^T: the weight is the left factor.
template <typename T, typename O>
void few_rows_forward(const LinearInputs<T>& in, const std::vector<LinearMap<T>>& maps) {
  const std::vector<OutputRows<T>> all = output_rows(maps);
  using A = Accumulator<T>;
  const int64_t most = padded(in.rows), wide = padded(in.inputs), depth = depth_of<O>(in.inputs);
  const Buffer<O> left(most * wide), columns(wide * most);
  pack_left<O>(matrix(in.x, in.rows, in.inputs), 0, most, wide, left.data());
  pack_columns<O>(left.data(), most, wide, columns.data(), most);
  parallel_tasks(static_cast<int64_t>(all.size()), entries(in, maps), [&](int64_t task) {
    const OutputRows<T>& at = all[static_cast<size_t>(task)];
    const Buffer<O> memory(std::is_same_v<O, T> && depth == in.inputs ? 0 : kOutputs * wide);
    const Buffer<A> sums(kOutputs * most);
    int64_t stride;
    const O* rows = left_factor<O>(matrix(at.map.weight, at.map.outputs, in.inputs), at.first, at.n,
                                   memory, &stride);
    multiply<O>(at.n, most, depth, rows, stride, columns.data(), most, sums.data(), most, false);
    release_gemm();
    for (int64_t i = 0; i < in.rows; ++i) {
      store_row(at, i, [&](int64_t c) { return sums[c * most + i]; });
    }
  });
}

template <typename T, typename O>
void many_rows_forward(const LinearInputs<T>& in, const std::vector<LinearMap<T>>& maps) {
  using A = Accumulator<T>;
  std::vector<Panels<O>> panels;
  for (const LinearMap<T>& map : maps) {
    const Panels<O>& made = panels.emplace_back(in.inputs, map.outputs);
    parallel_tasks(made.count(), in.inputs * map.outputs, [&](int64_t p) {
      made.pack_transposed(matrix(map.weight, map.outputs, in.inputs), p);
    });
  }
  const int64_t blocks = (in.rows + kRowBlock - 1) / kRowBlock;
  parallel_tasks(blocks, entries(in, maps), [&](int64_t block) {
    const int64_t first = block * kRowBlock, n = std::min(kRowBlock, in.rows - first);
    const Buffer<O> memory(kRowBlock * padded(in.inputs));
    const Buffer<A> sums(std::is_same_v<T, A> ? 0 : kRowBlock * gemm_engine().panel);
    int64_t stride;
    const O* left = left_factor<O>(matrix(in.x, in.rows, in.inputs), first, n, memory, &stride);
    for (size_t m = 0; m < maps.size(); ++m) {
      const LinearMap<T>& map = maps[m];
      for (int64_t p = 0; p < panels[m].count(); ++p) {
        const int64_t column = panels[m].first(p);
        make_columns<T, O>(panels[m], p, n, left, stride,
                           map.bias == nullptr ? nullptr : map.bias + column,
                           map.y + first * map.outputs + column, map.outputs, sums);
      }
    }
    release_gemm();
  });
}

template <typename T, typename O>
void inputs_backward(const LinearInputs<T>& in, const std::vector<LinearMapGradient<T>>& maps,
                     T* dx) {
  using A = Accumulator<T>;
  std::vector<Panels<O>> panels;
  int64_t widest = 0;
  for (const LinearMapGradient<T>& map : maps) {
    const Panels<O>& made = panels.emplace_back(map.outputs, in.inputs);
    parallel_tasks(made.count(), in.inputs * map.outputs,
                   [&](int64_t p) { made.pack(matrix(map.weight, map.outputs, in.inputs), p); });
    widest = std::max(widest, padded(map.outputs));
  }
  const int64_t blocks = (in.rows + kRowBlock - 1) / kRowBlock;
  parallel_tasks(blocks, entries(in, maps), [&](int64_t block) {
    const int64_t first = block * kRowBlock, n = std::min(kRowBlock, in.rows - first);
    const Buffer<O> memory(kRowBlock * widest);
    const Buffer<A> sums(std::is_same_v<T, A> ? 0 : kRowBlock * in.inputs);
    T* out = dx + first * in.inputs;
    A* c;
    if constexpr (std::is_same_v<T, A>) {
      c = out;
    } else {
      c = sums.data();
    }
    bool add = false;
    for (size_t m = 0; m < maps.size(); ++m) {
      if (maps[m].dy == nullptr) continue;
      int64_t stride;
      const O* left =
          left_factor<O>(matrix(maps[m].dy, in.rows, maps[m].outputs), first, n, memory, &stride);
      for (int64_t p = 0; p < panels[m].count(); ++p) {
        panels[m].multiply_by(p, n, left, stride, c + panels[m].first(p), in.inputs, add);
      }
      add = true;
    }
    if (!add) std::fill_n(c, n * in.inputs, A{0});
    if constexpr (!std::is_same_v<T, A>) {
      for (int64_t i = 0; i < n * in.inputs; ++i) out[i] = convert<T>(c[i]);
    }
    release_gemm();
  });
}

template <typename T, typename O>
void backward(const LinearInputs<T>& in, const std::vector<LinearMapGradient<T>>& maps, T* dx) {
  if (dx != nullptr) inputs_backward<T, O>(in, maps, dx);
  for (const LinearMapGradient<T>& map : maps) {
    WeightGradient<T, O> gradient(map.outputs, in.inputs, map.dweight, map.dbias);
    constexpr int64_t kRows = WeightGradient<T, O>::kChunkRows;
    for (int64_t first = 0; map.dy != nullptr && first < in.rows; first += kRows) {
      const int64_t n = std::min(kRows, in.rows - first);
      gradient.add(matrix(map.dy + first * map.outputs, n, map.outputs),
                   matrix(in.x + first * in.inputs, n, in.inputs));
    }
    gradient.finish();
  }
}

}  // namespace

template <typename T>
void linear_forward(const LinearInputs<T>& in, const std::vector<LinearMap<T>>& maps) {
  if (in.rows == 0) return;
  if (in.rows <= kDotRows) return dot_forward(in, maps);
  with_operands<T>([&]<typename O>() {
    if (in.rows <= kFewRows) {
      few_rows_forward<T, O>(in, maps);
    } else {
      many_rows_forward<T, O>(in, maps);
    }
  });
}

template <typename T>
void linear_backward(const LinearInputs<T>& in, const std::vector<LinearMapGradient<T>>& maps,
                     T* dx) {
  with_operands<T>([&]<typename O>() { backward<T, O>(in, maps, dx); });
}

template void linear_forward(const LinearInputs<float>&, const std::vector<LinearMap<float>>&);
template void linear_forward(const LinearInputs<double>&, const std::vector<LinearMap<double>>&);
template void linear_forward(const LinearInputs<Bfloat16>&,
                             const std::vector<LinearMap<Bfloat16>>&);
template void linear_backward(const LinearInputs<float>&,
                              const std::vector<LinearMapGradient<float>>&, float*);
template void linear_backward(const LinearInputs<double>&,
                              const std::vector<LinearMapGradient<double>>&, double*);
template void linear_backward(const LinearInputs<Bfloat16>&,
                              const std::vector<LinearMapGradient<Bfloat16>>&, Bfloat16*);

}  // namespace hopmix::kernels
