#include "hopmix/kernels/maps/linear.h"

#include <algorithm>
#include <vector>

#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/maps/linear_loops.h"
#include "hopmix/kernels/maps/panels.h"
#include "hopmix/kernels/maps/weight_gradient.h"

namespace hopmix::kernels {
namespace {

// Up to this many rows the weight is read where it lies, as the left factor of y^T = W x^T: to
// copy it would take longer than that saves.
constexpr int64_t kFewRows = 96;

// A part of the outputs, and the rows of the weight that make it.
template <typename T>
struct Part {
  T* data;
  int64_t width, first;
};

template <typename T>
std::vector<Part<T>> parts_of(const std::vector<LinearPart<T>>& parts) {
  std::vector<Part<T>> out;
  int64_t first = 0;
  for (const LinearPart<T>& part : parts) {
    out.push_back({part.data, part.width, first});
    first += part.width;
  }
  return out;
}

// At most kPanel columns of one part, from its column `column` on.
template <typename T>
struct Columns {
  Part<T> part;
  int64_t column, n;
};

template <typename T>
std::vector<Columns<T>> columns_of(const std::vector<LinearPart<T>>& parts) {
  std::vector<Columns<T>> out;
  for (const Part<T>& part : parts_of(parts)) {
    for (int64_t c = 0; c < part.width; c += kPanel) {
      out.push_back({part, c, std::min(kPanel, part.width - c)});
    }
  }
  return out;
}

template <typename T>
Accumulator<T> bias_at(const LinearInputs<T>& in, int64_t output) {
  return in.bias == nullptr ? Accumulator<T>{0} : convert<Accumulator<T>>(in.bias[output]);
}

template <typename T>
int64_t entries(const LinearInputs<T>& in) {
  return in.rows * (in.inputs + in.outputs) + in.inputs * in.outputs / 16;
}

// Up to kDotRows rows.
template <typename T>
void dot_forward(const LinearInputs<T>& in, const std::vector<Columns<T>>& all) {
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
  parallel_tasks(static_cast<int64_t>(all.size()), entries(in), [&](int64_t task) {
    const Columns<T>& at = all[static_cast<size_t>(task)];
    A sums[kDotRows * kPanel];
    const int64_t output = at.part.first + at.column;
    loops.dots(in.rows, at.n, in.inputs, x, in.weight + output * in.inputs, sums, kPanel);
    for (int64_t i = 0; i < in.rows; ++i) {
      T* y = at.part.data + i * at.part.width + at.column;
      for (int64_t c = 0; c < at.n; ++c) {
        y[c] = convert<T>(sums[i * kPanel + c] + bias_at(in, output + c));
      }
    }
  });
}

// Up to kFewRows rows.
template <typename T, typename O>
void few_rows_forward(const LinearInputs<T>& in, const std::vector<Columns<T>>& all) {
  using A = Accumulator<T>;
  const int64_t most = padded(in.rows), wide = padded(in.inputs), depth = depth_of<O>(in.inputs);
  const Buffer<O> left(most * wide), columns(wide * most);
  pack_left<O>(MatrixView<T>{in.x, in.rows, in.inputs, in.inputs}, 0, most, wide, left.data());
  pack_columns<O>(left.data(), most, wide, columns.data(), most);
  const MatrixView<T> weight{in.weight, in.outputs, in.inputs, in.inputs};
  parallel_tasks(static_cast<int64_t>(all.size()), entries(in), [&](int64_t task) {
    const Columns<T>& at = all[static_cast<size_t>(task)];
    const int64_t output = at.part.first + at.column;
    const Buffer<O> memory(std::is_same_v<O, T> && depth == in.inputs ? 0 : kPanel * wide);
    const Buffer<A> sums(kPanel * most);
    int64_t stride;
    const O* rows = left_factor<O>(weight, output, at.n, memory, &stride);
    multiply<O>(at.n, most, depth, rows, stride, columns.data(), most, sums.data(), most, false);
    release_gemm();
    for (int64_t i = 0; i < in.rows; ++i) {
      T* y = at.part.data + i * at.part.width + at.column;
      for (int64_t c = 0; c < at.n; ++c) {
        y[c] = convert<T>(sums[c * most + i] + bias_at(in, output + c));
      }
    }
  });
}

template <typename T, typename O>
void many_rows_forward(const LinearInputs<T>& in, const std::vector<LinearPart<T>>& y) {
  using A = Accumulator<T>;
  const std::vector<Part<T>> parts = parts_of(y);
  std::vector<Panels<O>> panels;
  for (const Part<T>& part : parts) {
    const MatrixView<T> weight{in.weight + part.first * in.inputs, part.width, in.inputs,
                               in.inputs};
    const Panels<O>& made = panels.emplace_back(in.inputs, part.width);
    parallel_tasks(made.count(), in.inputs * part.width,
                   [&](int64_t p) { made.pack_transposed(weight, p); });
  }
  const MatrixView<T> x{in.x, in.rows, in.inputs, in.inputs};
  const int64_t blocks = (in.rows + kRowBlock - 1) / kRowBlock;
  parallel_tasks(blocks, entries(in), [&](int64_t block) {
    const int64_t first = block * kRowBlock, n = std::min(kRowBlock, in.rows - first);
    const Buffer<O> memory(kRowBlock * padded(in.inputs));
    const Buffer<A> sums(std::is_same_v<T, A> ? 0 : kRowBlock * kPanel);
    int64_t stride;
    const O* left = left_factor<O>(x, first, n, memory, &stride);
    for (size_t part = 0; part < parts.size(); ++part) {
      const int64_t width = parts[part].width;
      for (int64_t p = 0; p < panels[part].count(); ++p) {
        T* out = parts[part].data + first * width + p * kPanel;
        const int64_t cols = panels[part].width(p), output = parts[part].first + p * kPanel;
        A* c;
        int64_t ldc;
        if constexpr (std::is_same_v<T, A>) {
          c = out, ldc = width;
        } else {
          c = sums.data(), ldc = kPanel;
        }
        for (int64_t i = 0; in.bias != nullptr && i < n; ++i) {
          for (int64_t j = 0; j < cols; ++j) c[i * ldc + j] = convert<A>(in.bias[output + j]);
        }
        panels[part].multiply_by(p, n, left, stride, c, ldc, /*add=*/in.bias != nullptr);
        if constexpr (!std::is_same_v<T, A>) {
          for (int64_t i = 0; i < n; ++i) {
            for (int64_t j = 0; j < cols; ++j) out[i * width + j] = convert<T>(c[i * ldc + j]);
          }
        }
      }
    }
    release_gemm();
  });
}

// dx = the sum over parts of dy_p W_p.
template <typename T, typename O>
void inputs_backward(const LinearInputs<T>& in, const std::vector<Part<const T>>& dy, T* dx) {
  using A = Accumulator<T>;
  std::vector<Panels<O>> panels;
  for (const Part<const T>& part : dy) {
    const MatrixView<T> weight{in.weight + part.first * in.inputs, part.width, in.inputs,
                               in.inputs};
    const Panels<O>& made = panels.emplace_back(part.width, in.inputs);
    parallel_tasks(made.count(), in.inputs * part.width, [&](int64_t p) { made.pack(weight, p); });
  }
  int64_t widest = 0;
  for (const Part<const T>& part : dy) widest = std::max(widest, padded(part.width));
  const int64_t blocks = (in.rows + kRowBlock - 1) / kRowBlock;
  parallel_tasks(blocks, entries(in), [&](int64_t block) {
    const int64_t first = block * kRowBlock, n = std::min(kRowBlock, in.rows - first);
    const Buffer<O> memory(kRowBlock * widest);
    const Buffer<A> sums(std::is_same_v<T, A> ? 0 : kRowBlock * padded(in.inputs));
    T* out = dx + first * in.inputs;
    A* c;
    if constexpr (std::is_same_v<T, A>) {
      c = out;
    } else {
      c = sums.data();
    }
    for (size_t part = 0; part < dy.size(); ++part) {
      const MatrixView<T> grad{dy[part].data, in.rows, dy[part].width, dy[part].width};
      int64_t stride;
      const O* left = left_factor<O>(grad, first, n, memory, &stride);
      for (int64_t p = 0; p < panels[part].count(); ++p) {
        panels[part].multiply_by(p, n, left, stride, c + p * kPanel, in.inputs, /*add=*/part > 0);
      }
    }
    if (dy.empty()) std::fill_n(c, n * in.inputs, A{0});
    if constexpr (!std::is_same_v<T, A>) {
      for (int64_t i = 0; i < n * in.inputs; ++i) out[i] = convert<T>(c[i]);
    }
    release_gemm();
  });
}

template <typename T, typename O>
void backward(const LinearInputs<T>& in, const std::vector<LinearPart<const T>>& dy, T* dx,
              T* dweight, T* dbias) {
  std::vector<Part<const T>> given;
  for (const Part<const T>& part : parts_of(dy)) {
    if (part.data != nullptr && part.width > 0) given.push_back(part);
  }
  if (dx != nullptr) inputs_backward<T, O>(in, given, dx);
  for (const Part<const T>& part : parts_of(dy)) {
    WeightGradient<T, O> gradient(part.width, in.inputs,
                                  dweight ? dweight + part.first * in.inputs : nullptr,
                                  dbias ? dbias + part.first : nullptr);
    constexpr int64_t kRows = WeightGradient<T, O>::kChunkRows;
    for (int64_t first = 0; part.data != nullptr && first < in.rows; first += kRows) {
      const int64_t n = std::min(kRows, in.rows - first);
      gradient.add(MatrixView<T>{part.data + first * part.width, n, part.width, part.width},
                   MatrixView<T>{in.x + first * in.inputs, n, in.inputs, in.inputs});
    }
    gradient.finish();
  }
}

}  // namespace

template <typename T>
void linear_forward(const LinearInputs<T>& in, const std::vector<LinearPart<T>>& y) {
  if (in.rows == 0) return;
  if (in.rows <= kDotRows) return dot_forward(in, columns_of(y));
  with_operands<T>([&]<typename O>() {
    if (in.rows <= kFewRows) {
      few_rows_forward<T, O>(in, columns_of(y));
    } else {
      many_rows_forward<T, O>(in, y);
    }
  });
}

template <typename T>
void linear_backward(const LinearInputs<T>& in, const std::vector<LinearPart<const T>>& dy, T* dx,
                     T* dweight, T* dbias) {
  with_operands<T>([&]<typename O>() { backward<T, O>(in, dy, dx, dweight, dbias); });
}

template void linear_forward(const LinearInputs<float>&, const std::vector<LinearPart<float>>&);
template void linear_forward(const LinearInputs<double>&, const std::vector<LinearPart<double>>&);
template void linear_forward(const LinearInputs<Bfloat16>&,
                             const std::vector<LinearPart<Bfloat16>>&);
template void linear_backward(const LinearInputs<float>&,
                              const std::vector<LinearPart<const float>>&, float*, float*, float*);
template void linear_backward(const LinearInputs<double>&,
                              const std::vector<LinearPart<const double>>&, double*, double*,
                              double*);
template void linear_backward(const LinearInputs<Bfloat16>&,
                              const std::vector<LinearPart<const Bfloat16>>&, Bfloat16*, Bfloat16*,
                              Bfloat16*);

}  // namespace hopmix::kernels
