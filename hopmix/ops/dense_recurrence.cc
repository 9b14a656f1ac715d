// dense_recurrence: checks, CPU and meta kernels, autograd.
#include <torch/library.h>

#include "hopmix/kernels/dense/dense_recurrence.h"
#include "hopmix/ops/checks.h"
#include "hopmix/ops/engines.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/saved_autograd.h"

namespace hopmix::ops {
namespace {

using Cu = const std::optional<Tensor>&;
using Scale = std::optional<double>;
using Needs = std::array<bool, 6>;

Arguments check(const std::string& op, const Tensors<6>& in, Cu cu) {
  const auto& [q, k, v, gate, d, d_self] = in;
  Arguments args(op);
  args.tensor("q", q, {"B", "T", "H", "DK"});
  args.tensor("k", k, {"B", "T", "G", "DK"});
  args.tensor("v", v, {"B", "T", "G", "DV"});
  args.tensor("gate", gate, {"B", "T", "H"});
  args.tensor("d", d, {"B", "T", "H"});
  args.tensor("d_self", d_self, {"B", "T", "H"});
  args.grouped_heads();
  args.cu_seqlens(cu);
  return args;
}

// The output, mix (the backward takes small differences of its products, so it is kept unrounded),
// and the rows' lse.
std::vector<Tensor> outputs(const Arguments& args) {
  return {args.empty({"B", "T", "H", "DV"}), args.empty({"B", "T", "H", "DV"}, args.state_dtype()),
          args.empty({"B", "T", "H"}, args.state_dtype())};
}

std::vector<Tensor> forward_meta(const Tensors<6>& in, Scale, Cu cu) {
  return outputs(check("dense_recurrence", in, cu));
}

template <typename T>
kernels::DenseRecurrenceInputs<T> bind(const Arguments& args, const Tensors<6>& in, Scale scale,
                                       const kernels::Sequences& sequences) {
  return {read<T>(in[0]),  read<T>(in[1]),  read<T>(in[2]),    read<T>(in[3]),
          read<T>(in[4]),  read<T>(in[5]),  args.size("H"),    args.size("G"),
          args.size("DK"), args.size("DV"), args.scale(scale), sequences};
}

std::vector<Tensor> forward_cpu(const Tensors<6>& in, Scale scale, Cu cu) {
  const Arguments args = check("dense_recurrence", in, cu);
  args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const std::vector<Tensor> out = outputs(args);
  if (out[0].numel() == 0) return out;
  const Tensors<6> flat = contiguous(in);
  ensure_gemm_engine();
  with_storage_type(args.dtype(), [&]<typename T>() {
    using A = kernels::Accumulator<T>;
    kernels::dense_recurrence<T>(bind<T>(args, flat, scale, sequences), write<T>(out[0]),
                                 {write<A>(out[1]), write<A>(out[2])});
  });
  return out;
}

Arguments check_backward(const Tensor& grad_y, at::TensorList kept, const Tensors<6>& in, Cu cu) {
  Arguments args = check("dense_recurrence_backward", in, cu);
  args.tensor("grad_y", grad_y, {"B", "T", "H", "DV"});
  args.kept(kept, 2);
  args.state("mix", kept[0], {"B", "T", "H", "DV"});
  args.state("lse", kept[1], {"B", "T", "H"});
  return args;
}

std::vector<Tensor> backward_meta(const Tensor& grad_y, at::TensorList kept, const Tensors<6>& in,
                                  Scale, Cu cu, Needs needs) {
  check_backward(grad_y, kept, in, cu);
  return gradients(in, needs);
}

std::vector<Tensor> backward_cpu(const Tensor& grad_y, at::TensorList kept, const Tensors<6>& in,
                                 Scale scale, Cu cu, Needs needs) {
  const Arguments args = check_backward(grad_y, kept, in, cu);
  args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const std::vector<Tensor> out = gradients(in, needs);
  if (grad_y.numel() == 0) {
    for (const Tensor& t : out) t.zero_();
    return out;
  }
  const Tensors<6> flat = contiguous(in);
  const Tensors<3> saved = contiguous(Tensors<3>{grad_y, kept[0], kept[1]});
  ensure_gemm_engine();
  with_storage_type(args.dtype(), [&]<typename T>() {
    using A = kernels::Accumulator<T>;
    const auto to = [&](size_t i) { return write_if<T>(needs[i], out[i]); };
    kernels::dense_recurrence_backward<T>(bind<T>(args, flat, scale, sequences), read<T>(saved[0]),
                                          {read<A>(saved[1]), read<A>(saved[2])},
                                          {to(0), to(1), to(2), to(3), to(4), to(5)});
  });
  return out;
}

struct Op {
  static constexpr char kName[] = "dense_recurrence";
  static constexpr char kInputs[] =
      "Tensor q, Tensor k, Tensor v, Tensor gate, Tensor d, Tensor d_self";
  static constexpr char kTail[] = "float? scale=None";
  static constexpr auto* kForward = forward_cpu;
  static constexpr auto* kBackward = backward_cpu;
  static constexpr auto* kForwardMeta = forward_meta;
  static constexpr auto* kBackwardMeta = backward_meta;
};
using Operator = Saved<Op, 6, Scale>;

TORCH_LIBRARY_FRAGMENT(hopmix, m) { Operator::define(m); }
TORCH_LIBRARY_IMPL(hopmix, CPU, m) { Operator::implement_cpu(m); }
TORCH_LIBRARY_IMPL(hopmix, Meta, m) { Operator::implement_meta(m); }
TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { Operator::implement_autograd(m); }

}  // namespace

Tensor dense_recurrence(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                        const Tensor& d, const Tensor& d_self, std::optional<double> scale,
                        const std::optional<Tensor>& cu_seqlens) {
  return Operator::call({q, k, v, gate, d, d_self}, scale, cu_seqlens);
}

}  // namespace hopmix::ops
