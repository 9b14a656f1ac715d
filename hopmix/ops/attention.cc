// attention: checks, CPU and meta kernels, autograd.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "hopmix/kernels/dense/attention.h"
#include "hopmix/ops/checks.h"
#include "hopmix/ops/engines.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/saved_autograd.h"

namespace hopmix::ops {
namespace {

using Cu = const std::optional<Tensor>&;
using Scale = std::optional<double>;
using Needs = std::array<bool, 3>;

Arguments check(const std::string& op, const Tensors<3>& in, Cu cu) {
  const auto& [q, k, v] = in;
  Arguments args(op);
  args.tensor("q", q, {"B", "T", "H", "DK"});
  args.tensor("k", k, {"B", "T", "G", "DK"});
  args.tensor("v", v, {"B", "T", "G", "DV"});
  args.grouped_heads();
  args.cu_seqlens(cu);
  return args;
}

bool rounds(const Arguments& args) { return args.state_dtype() != args.dtype(); }

// o, o before it was rounded if it is, and the rows' lse.
std::vector<Tensor> outputs(const Arguments& args, const Tensors<3>& in) {
  return {args.empty({"B", "T", "H", "DV"}),
          rounds(args) ? args.empty({"B", "T", "H", "DV"}, args.state_dtype())
                       : at::empty({0}, in[0].options()),
          args.empty({"B", "T", "H"}, args.state_dtype())};
}

std::vector<Tensor> forward_meta(const Tensors<3>& in, Scale, Cu cu) {
  return outputs(check("attention", in, cu), in);
}

template <typename T>
kernels::AttentionInputs<T> bind(const Arguments& args, const Tensors<3>& in, Scale scale,
                                 const kernels::Sequences& sequences) {
  return {read<T>(in[0]),  read<T>(in[1]),  read<T>(in[2]),    args.size("H"), args.size("G"),
          args.size("DK"), args.size("DV"), args.scale(scale), sequences};
}

std::vector<Tensor> forward_cpu(const Tensors<3>& in, Scale scale, Cu cu) {
  const Arguments args = check("attention", in, cu);
  args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const std::vector<Tensor> out = outputs(args, in);
  if (out[0].numel() == 0) return out;
  const Tensors<3> flat = contiguous(in);
  ensure_gemm_engine();
  with_storage_type(args.dtype(), [&]<typename T>() {
    using A = kernels::Accumulator<T>;
    kernels::attention<T>(bind<T>(args, flat, scale, sequences), write<T>(out[0]),
                          {write_if<A>(rounds(args), out[1]), write<A>(out[2])});
  });
  return out;
}

Arguments check_backward(const Tensor& grad_y, at::TensorList kept, const Tensors<3>& in, Cu cu) {
  Arguments args = check("attention_backward", in, cu);
  args.tensor("grad_y", grad_y, {"B", "T", "H", "DV"});
  args.kept(kept, 3);
  args.state("mix", kept[rounds(args) ? 1 : 0], {"B", "T", "H", "DV"});
  args.state("lse", kept[2], {"B", "T", "H"});
  return args;
}

std::vector<Tensor> backward_meta(const Tensor& grad_y, at::TensorList kept, const Tensors<3>& in,
                                  Scale, Cu cu, Needs needs) {
  check_backward(grad_y, kept, in, cu);
  return gradients(in, needs);
}

std::vector<Tensor> backward_cpu(const Tensor& grad_y, at::TensorList kept, const Tensors<3>& in,
                                 Scale scale, Cu cu, Needs needs) {
  const Arguments args = check_backward(grad_y, kept, in, cu);
  args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const std::vector<Tensor> out = gradients(in, needs);
  if (grad_y.numel() == 0) {
    for (const Tensor& t : out) t.zero_();
    return out;
  }
  const Tensors<3> flat = contiguous(in);
  const Tensors<3> saved = contiguous(Tensors<3>{grad_y, kept[rounds(args) ? 1 : 0], kept[2]});
  ensure_gemm_engine();
  with_storage_type(args.dtype(), [&]<typename T>() {
    using A = kernels::Accumulator<T>;
    const auto to = [&](size_t i) { return write_if<T>(needs[i], out[i]); };
    kernels::attention_backward<T>(bind<T>(args, flat, scale, sequences), read<T>(saved[0]),
                                   {read<A>(saved[1]), read<A>(saved[2])}, {to(0), to(1), to(2)});
  });
  return out;
}

struct Op {
  static constexpr char kName[] = "attention";
  static constexpr char kInputs[] = "Tensor q, Tensor k, Tensor v";
  static constexpr char kTail[] = "float? scale=None";
  static constexpr bool kKeepsOutput = true;
  static constexpr auto* kForward = forward_cpu;
  static constexpr auto* kBackward = backward_cpu;
  static constexpr auto* kForwardMeta = forward_meta;
  static constexpr auto* kBackwardMeta = backward_meta;
};
using Operator = Saved<Op, 3, Scale>;

TORCH_LIBRARY_FRAGMENT(hopmix, m) { Operator::define(m); }
TORCH_LIBRARY_IMPL(hopmix, CPU, m) { Operator::implement_cpu(m); }
TORCH_LIBRARY_IMPL(hopmix, Meta, m) { Operator::implement_meta(m); }
TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { Operator::implement_autograd(m); }

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, std::optional<double> scale,
                 const std::optional<Tensor>& cu_seqlens) {
  return Operator::call({q, k, v}, scale, cu_seqlens);
}

}  // namespace hopmix::ops
