// gather_attention: checks, CPU and meta kernels, autograd. The mathematics is in
// kernels/rows/sparse_attention.h.
#include <torch/library.h>

#include "hopmix/kernels/rows/sparse_attention.h"
#include "hopmix/ops/checks.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/saved_autograd.h"

namespace hopmix::ops {
namespace {

using Cu = const std::optional<Tensor>&;
using Scale = std::optional<double>;
using Needs = std::array<bool, 4>;

Arguments check(const std::string& op, const Tensors<4>& in, Cu cu) {
  const auto& [q, k, v, indices] = in;
  Arguments args(op);
  args.tensor("q", q, {"B", "T", "H", "DK"});
  args.tensor("k", k, {"B", "T", "G", "DK"});
  args.tensor("v", v, {"B", "T", "G", "DV"});
  args.grouped_heads();
  args.retrieved(indices);
  args.cu_seqlens(cu);
  return args;
}

template <typename T>
kernels::SparseAttentionInputs<T> kernel_inputs(const Arguments& args, const Tensors<4>& flat,
                                                double scale, const kernels::Sequences& sequences,
                                                const BoundRetrieval& retrieved) {
  const auto& [q, k, v, indices] = flat;
  return {read<T>(q),
          read<T>(k),
          read<T>(v),
          args.size("H"),
          args.size("G"),
          args.size("DK"),
          args.size("DV"),
          scale,
          /*include_self=*/false,
          sequences,
          retrieved.rows(args.size("H"))};
}

std::vector<Tensor> forward_meta(const Tensors<4>& in, Scale, Cu cu) {
  return {check("gather_attention", in, cu).empty({"B", "T", "H", "DV"})};
}

std::vector<Tensor> forward_cpu(const Tensors<4>& in, Scale scale, Cu cu) {
  const Arguments args = check("gather_attention", in, cu);
  const double factor = args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const BoundRetrieval retrieved(args, in[3], sequences, /*strictly_earlier=*/false);
  const Tensors<4> flat = contiguous(in);
  const Tensor y = args.empty({"B", "T", "H", "DV"});
  with_storage_type(y.scalar_type(), [&]<typename T>() {
    kernels::sparse_attention(kernel_inputs<T>(args, flat, factor, sequences, retrieved),
                              write<T>(y));
  });
  return {y};
}

Arguments check_backward(const Tensor& grad_y, at::TensorList kept, const Tensors<4>& in, Cu cu) {
  Arguments args = check("gather_attention_backward", in, cu);
  args.tensor("grad_y", grad_y, {"B", "T", "H", "DV"});
  args.kept(kept, 0);
  return args;
}

std::vector<Tensor> backward_meta(const Tensor& grad_y, at::TensorList kept, const Tensors<4>& in,
                                  Scale, Cu cu, Needs needs) {
  check_backward(grad_y, kept, in, cu);
  return gradients(in, needs);
}

std::vector<Tensor> backward_cpu(const Tensor& grad_y, at::TensorList kept, const Tensors<4>& in,
                                 Scale scale, Cu cu, Needs needs) {
  const Arguments args = check_backward(grad_y, kept, in, cu);
  const double factor = args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const BoundRetrieval retrieved(args, in[3], sequences, /*strictly_earlier=*/false);
  const Tensors<4> flat = contiguous(in);
  const Tensor flat_grad = grad_y.contiguous();
  const std::vector<Tensor> out = gradients(in, needs);
  with_storage_type(args.dtype(), [&]<typename T>() {
    kernels::sparse_attention_backward<T>(
        kernel_inputs<T>(args, flat, factor, sequences, retrieved), read<T>(flat_grad),
        {write_if<T>(needs[0], out[0]), write_if<T>(needs[1], out[1]),
         write_if<T>(needs[2], out[2])});
  });
  return out;
}

struct Op {
  static constexpr char kName[] = "gather_attention";
  static constexpr char kInputs[] = "Tensor q, Tensor k, Tensor v, Tensor indices";
  static constexpr char kTail[] = "float? scale=None";
  static constexpr auto* kForward = forward_cpu;
  static constexpr auto* kBackward = backward_cpu;
  static constexpr auto* kForwardMeta = forward_meta;
  static constexpr auto* kBackwardMeta = backward_meta;
};
using Operator = Saved<Op, 4, Scale>;

TORCH_LIBRARY_FRAGMENT(hopmix, m) { Operator::define(m); }
TORCH_LIBRARY_IMPL(hopmix, CPU, m) { Operator::implement_cpu(m); }
TORCH_LIBRARY_IMPL(hopmix, Meta, m) { Operator::implement_meta(m); }
TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { Operator::implement_autograd(m); }

}  // namespace

Tensor gather_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& indices,
                        std::optional<double> scale, const std::optional<Tensor>& cu_seqlens) {
  return Operator::call({q, k, v, indices}, scale, cu_seqlens);
}

}  // namespace hopmix::ops
