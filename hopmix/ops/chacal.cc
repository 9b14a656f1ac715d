// chacal: checks, CPU and meta kernels, autograd. The mathematics is in dense_blocks.h, with c = v,
// g = gamma and rows that read themselves: W = (I - gamma A)^{-1} V, y = (1 - gamma) mix.
#include <torch/library.h>

#include "hopmix/ops/block_types.h"
#include "hopmix/ops/checks.h"
#include "hopmix/ops/dense_heads.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/saved_autograd.h"

namespace hopmix::ops {
namespace {

using Cu = const std::optional<Tensor>&;
using Scale = std::optional<double>;
using Needs = std::array<bool, 3>;

Arguments check(const std::string& op, const Tensors<3>& in, double gamma, Cu cu) {
  const auto& [q, k, v] = in;
  Arguments args(op);
  args.tensor("q", q, {"B", "T", "H", "DK"});
  args.tensor("k", k, {"B", "T", "G", "DK"});
  args.tensor("v", v, {"B", "T", "G", "DV"});
  args.grouped_heads();
  args.cu_seqlens(cu);
  args.gamma(gamma);
  return args;
}

// The output, mix (the backward takes small differences of its products, so it is kept unrounded),
// and the rows' lse.
std::vector<Tensor> outputs(const Arguments& args) {
  return {args.empty({"B", "T", "H", "DV"}), args.empty({"B", "T", "H", "DV"}, args.state_dtype()),
          args.empty({"B", "T", "H"}, args.state_dtype())};
}

std::vector<Tensor> forward_meta(const Tensors<3>& in, double gamma, Scale, Cu cu) {
  return outputs(check("chacal", in, gamma, cu));
}

std::vector<Tensor> forward_cpu(const Tensors<3>& in, double gamma, Scale scale, Cu cu) {
  const Arguments args = check("chacal", in, gamma, cu);
  const Tensor v = in[2].contiguous();
  const DenseCall call(args, in[0], in[1], /*reads_self=*/true, scale, cu);
  const std::vector<Tensor> out = outputs(args);
  if (out[0].numel() == 0) return out;
  with_block_types(args.dtype(), [&]<typename T, typename O>() {
    using A = kernels::Accumulator<T>;
    const auto prepare = [&](const HeadWork<A>& work) {
      for (int64_t i = 0; i < work.length; ++i) {
        work.gate[i] = static_cast<A>(gamma);
        const T* from = read<T>(v) + work.at(i, call.kv_heads, work.kv_head, call.values);
#pragma omp simd
        for (int64_t x = 0; x < call.values; ++x) {
          work.w[i * work.values + x] = static_cast<A>(from[x]);
        }
      }
    };
    const auto finish = [&](const HeadWork<A>& work) {
      for (int64_t i = 0; i < work.length; ++i) {
        const int64_t row = work.at(i, call.heads, work.head, call.values);
        const A* mix = work.mix + i * work.values;
        T* y = write<T>(out[0]) + row;
#pragma omp simd
        for (int64_t x = 0; x < call.values; ++x) {
          y[x] = static_cast<T>(static_cast<A>(1 - gamma) * mix[x]);
        }
        std::copy_n(mix, call.values, write<A>(out[1]) + row);
        write<A>(out[2])[work.at(i, call.heads, work.head, 1)] = work.lse[i];
      }
    };
    dense_forward<T, O>(call, prepare, finish);
  });
  return out;
}

Arguments check_backward(const Tensor& grad_y, at::TensorList kept, const Tensors<3>& in,
                         double gamma, Cu cu) {
  Arguments args = check("chacal_backward", in, gamma, cu);
  args.tensor("grad_y", grad_y, {"B", "T", "H", "DV"});
  args.kept(kept, 2);
  args.state("mix", kept[0], {"B", "T", "H", "DV"});
  args.state("lse", kept[1], {"B", "T", "H"});
  return args;
}

std::vector<Tensor> backward_meta(const Tensor& grad_y, at::TensorList kept, const Tensors<3>& in,
                                  double gamma, Scale, Cu cu, Needs needs) {
  check_backward(grad_y, kept, in, gamma, cu);
  return gradients(in, needs);
}

std::vector<Tensor> backward_cpu(const Tensor& grad_y, at::TensorList kept, const Tensors<3>& in,
                                 double gamma, Scale scale, Cu cu, Needs needs) {
  const Arguments args = check_backward(grad_y, kept, in, gamma, cu);
  const Tensors<4> saved = contiguous(Tensors<4>{grad_y, kept[0], kept[1], in[2]});
  const DenseCall call(args, in[0], in[1], /*reads_self=*/true, scale, cu);
  const std::vector<Tensor> out = gradients(in, needs);
  if (grad_y.numel() == 0) {
    for (const Tensor& t : out) t.zero_();
    return out;
  }
  with_block_types(args.dtype(), [&]<typename T, typename O>() {
    using A = kernels::Accumulator<T>;
    const A share = static_cast<A>(1 - gamma), g = static_cast<A>(gamma);
    const auto prepare = [&](const HeadWork<A>& work) {
      for (int64_t i = 0; i < work.length; ++i) {
        const int64_t row = work.at(i, call.heads, work.head, call.values), at = i * work.values;
        const T* grad = read<T>(saved[0]) + row;
        const A* mix = read<A>(saved[1]) + row;
        const T* v = read<T>(saved[3]) + work.at(i, call.kv_heads, work.kv_head, call.values);
        work.gate[i] = g;
        work.lse[i] = read<A>(saved[2])[work.at(i, call.heads, work.head, 1)];
#pragma omp simd
        for (int64_t x = 0; x < call.values; ++x) {
          work.mix[at + x] = mix[x];
          work.w[at + x] = static_cast<A>(v[x]) + g * mix[x];
          work.h[at + x] = share * static_cast<A>(grad[x]);
        }
      }
    };
    const auto finish = [&](const HeadWork<A>& work) {
      for (int64_t x = 0; x < work.length * work.values; ++x) work.dv[x] += work.l[x];
    };
    dense_backward<T, O>(call, if_wanted(needs[0], out[0]), if_wanted(needs[1], out[1]),
                                   if_wanted(needs[2], out[2]), prepare, finish);
  });
  return out;
}

struct Op {
  static constexpr char kName[] = "chacal";
  static constexpr char kInputs[] = "Tensor q, Tensor k, Tensor v";
  static constexpr char kTail[] = "float gamma, float? scale=None";
  static constexpr auto* kForward = forward_cpu;
  static constexpr auto* kBackward = backward_cpu;
  static constexpr auto* kForwardMeta = forward_meta;
  static constexpr auto* kBackwardMeta = backward_meta;
};
using Operator = Saved<Op, 3, double, Scale>;

TORCH_LIBRARY_FRAGMENT(hopmix, m) { Operator::define(m); }
TORCH_LIBRARY_IMPL(hopmix, CPU, m) { Operator::implement_cpu(m); }
TORCH_LIBRARY_IMPL(hopmix, Meta, m) { Operator::implement_meta(m); }
TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { Operator::implement_autograd(m); }

}  // namespace

Tensor chacal(const Tensor& q, const Tensor& k, const Tensor& v, double gamma,
              std::optional<double> scale, const std::optional<Tensor>& cu_seqlens) {
  return Operator::call({q, k, v}, gamma, scale, cu_seqlens);
}

}  // namespace hopmix::ops
