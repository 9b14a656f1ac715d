// block_chacal: checks, CPU and meta kernels, autograd.
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "hopmix/kernels/dense/block_chacal.h"
#include "hopmix/ops/checks.h"
#include "hopmix/ops/engines.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/saved_autograd.h"

namespace hopmix::ops {
namespace {

using Cu = const std::optional<Tensor>&;
using Block = std::optional<int64_t>;
using Scale = std::optional<double>;
using Needs = std::array<bool, 3>;

Arguments check(const std::string& op, const Tensors<3>& in, double gamma, Block block, Cu cu) {
  const auto& [q, k, v] = in;
  Arguments args(op);
  args.tensor("q", q, {"B", "T", "H", "DK"});
  args.tensor("k", k, {"B", "T", "G", "DK"});
  args.tensor("v", v, {"B", "T", "G", "DV"});
  args.grouped_heads();
  args.cu_seqlens(cu);
  args.gamma(gamma);
  TORCH_CHECK_VALUE(!block || *block >= 1, op, ": block is ", *block, ", but must be at least 1");
  return args;
}

// The output, mix (the backward takes small differences of its products, so it is kept unrounded),
// and the rows' lse.
std::vector<Tensor> outputs(const Arguments& args) {
  return {args.empty({"B", "T", "H", "DV"}), args.empty({"B", "T", "H", "DV"}, args.state_dtype()),
          args.empty({"B", "T", "H"}, args.state_dtype())};
}

std::vector<Tensor> forward_meta(const Tensors<3>& in, double gamma, Block block, Scale, Cu cu) {
  return outputs(check("block_chacal", in, gamma, block, cu));
}

template <typename T>
kernels::BlockChacalInputs<T> bind(const Arguments& args, const Tensors<3>& in, double gamma,
                                   Block block, Scale scale, const kernels::Sequences& sequences) {
  return {read<T>(in[0]),    read<T>(in[1]),    read<T>(in[2]),  args.size("H"),
          args.size("G"),    args.size("DK"),   args.size("DV"), gamma,
          block.value_or(0), args.scale(scale), sequences};
}

std::vector<Tensor> forward_cpu(const Tensors<3>& in, double gamma, Block block, Scale scale,
                                Cu cu) {
  const Arguments args = check("block_chacal", in, gamma, block, cu);
  args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const std::vector<Tensor> out = outputs(args);
  if (out[0].numel() == 0) return out;
  const Tensors<3> flat = contiguous(in);
  ensure_gemm_engine();
  with_storage_type(args.dtype(), [&]<typename T>() {
    using A = kernels::Accumulator<T>;
    kernels::block_chacal<T>(bind<T>(args, flat, gamma, block, scale, sequences), write<T>(out[0]),
                             {write<A>(out[1]), write<A>(out[2])});
  });
  return out;
}

Arguments check_backward(const Tensor& grad_y, at::TensorList kept, const Tensors<3>& in,
                         double gamma, Block block, Cu cu) {
  Arguments args = check("block_chacal_backward", in, gamma, block, cu);
  args.tensor("grad_y", grad_y, {"B", "T", "H", "DV"});
  args.kept(kept, 2);
  args.state("mix", kept[0], {"B", "T", "H", "DV"});
  args.state("lse", kept[1], {"B", "T", "H"});
  return args;
}

std::vector<Tensor> backward_meta(const Tensor& grad_y, at::TensorList kept, const Tensors<3>& in,
                                  double gamma, Block block, Scale, Cu cu, Needs needs) {
  check_backward(grad_y, kept, in, gamma, block, cu);
  return gradients(in, needs);
}

std::vector<Tensor> backward_cpu(const Tensor& grad_y, at::TensorList kept, const Tensors<3>& in,
                                 double gamma, Block block, Scale scale, Cu cu, Needs needs) {
  const Arguments args = check_backward(grad_y, kept, in, gamma, block, cu);
  args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const std::vector<Tensor> out = gradients(in, needs);
  if (grad_y.numel() == 0) {
    for (const Tensor& t : out) t.zero_();
    return out;
  }
  const Tensors<3> flat = contiguous(in);
  const Tensors<3> saved = contiguous(Tensors<3>{grad_y, kept[0], kept[1]});
  ensure_gemm_engine();
  with_storage_type(args.dtype(), [&]<typename T>() {
    using A = kernels::Accumulator<T>;
    const auto to = [&](size_t i) { return write_if<T>(needs[i], out[i]); };
    kernels::block_chacal_backward<T>(bind<T>(args, flat, gamma, block, scale, sequences),
                                      read<T>(saved[0]), {read<A>(saved[1]), read<A>(saved[2])},
                                      {to(0), to(1), to(2)});
  });
  return out;
}

struct Op {
  static constexpr char kName[] = "block_chacal";
  static constexpr char kInputs[] = "Tensor q, Tensor k, Tensor v";
  static constexpr char kTail[] = "float gamma, int? block=None, float? scale=None";
  static constexpr auto* kForward = forward_cpu;
  static constexpr auto* kBackward = backward_cpu;
  static constexpr auto* kForwardMeta = forward_meta;
  static constexpr auto* kBackwardMeta = backward_meta;
};
using Operator = Saved<Op, 3, double, Block, Scale>;

TORCH_LIBRARY_FRAGMENT(hopmix, m) { Operator::define(m); }
TORCH_LIBRARY_IMPL(hopmix, CPU, m) { Operator::implement_cpu(m); }
TORCH_LIBRARY_IMPL(hopmix, Meta, m) { Operator::implement_meta(m); }
TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { Operator::implement_autograd(m); }

}  // namespace

Tensor block_chacal(const Tensor& q, const Tensor& k, const Tensor& v, double gamma,
                    std::optional<int64_t> block, std::optional<double> scale,
                    const std::optional<Tensor>& cu_seqlens) {
  return Operator::call({q, k, v}, gamma, block, scale, cu_seqlens);
}

}  // namespace hopmix::ops
