// retrieved_glr: checks, CPU and meta kernels, autograd. The mathematics is in
// kernels/rows/glr_attention.h.
#include <torch/library.h>

#include "hopmix/kernels/rows/glr_attention.h"
#include "hopmix/ops/checks.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/saved_autograd.h"

namespace hopmix::ops {
namespace {

using Cu = const std::optional<Tensor>&;
using Scale = std::optional<double>;
using Needs = std::array<bool, 7>;

Arguments check(const std::string& op, const Tensors<7>& in, Cu cu) {
  const auto& [q, k, v, gate, d, d_self, indices] = in;
  Arguments args(op);
  args.tensor("q", q, {"B", "T", "H", "DK"});
  args.tensor("k", k, {"B", "T", "G", "DK"});
  args.tensor("v", v, {"B", "T", "G", "DV"});
  args.tensor("gate", gate, {"B", "T", "H"});
  args.tensor("d", d, {"B", "T", "H"});
  args.tensor("d_self", d_self, {"B", "T", "H"});
  args.grouped_heads();
  args.retrieved(indices);
  args.cu_seqlens(cu);
  return args;
}

template <typename T>
kernels::GlrAttentionInputs<T> kernel_inputs(const Arguments& args, const Tensors<7>& flat,
                                             double scale, const kernels::Sequences& sequences,
                                             const BoundRetrieval& retrieved) {
  const auto& [q, k, v, gate, d, d_self, indices] = flat;
  return {read<T>(q),
          read<T>(k),
          read<T>(v),
          read<T>(gate),
          read<T>(d),
          read<T>(d_self),
          args.size("H"),
          args.size("G"),
          args.size("DK"),
          args.size("DV"),
          scale,
          sequences,
          retrieved.rows(args.size("H"))};
}

std::vector<Tensor> forward_meta(const Tensors<7>& in, Scale, Cu cu) {
  return {check("retrieved_glr", in, cu).empty({"B", "T", "H", "DV"})};
}

std::vector<Tensor> forward_cpu(const Tensors<7>& in, Scale scale, Cu cu) {
  const Arguments args = check("retrieved_glr", in, cu);
  const double factor = args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const BoundRetrieval retrieved(args, in[6], sequences, /*strictly_earlier=*/true);
  const Tensors<7> flat = contiguous(in);
  const Tensor y = args.empty({"B", "T", "H", "DV"});
  with_storage_type(y.scalar_type(), [&]<typename T>() {
    kernels::glr_attention(kernel_inputs<T>(args, flat, factor, sequences, retrieved), write<T>(y));
  });
  return {y};
}

Arguments check_backward(const Tensor& grad_y, at::TensorList kept, const Tensors<7>& in, Cu cu) {
  Arguments args = check("retrieved_glr_backward", in, cu);
  args.tensor("grad_y", grad_y, {"B", "T", "H", "DV"});
  args.kept(kept, 1);
  args.tensor("y", kept[0], {"B", "T", "H", "DV"});
  return args;
}

std::vector<Tensor> backward_meta(const Tensor& grad_y, at::TensorList kept, const Tensors<7>& in,
                                  Scale, Cu cu, Needs needs) {
  check_backward(grad_y, kept, in, cu);
  return gradients(in, needs);
}

std::vector<Tensor> backward_cpu(const Tensor& grad_y, at::TensorList kept, const Tensors<7>& in,
                                 Scale scale, Cu cu, Needs needs) {
  const Arguments args = check_backward(grad_y, kept, in, cu);
  const double factor = args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const BoundRetrieval retrieved(args, in[6], sequences, /*strictly_earlier=*/true);
  const Tensors<7> flat = contiguous(in);
  const Tensors<2> outer = contiguous(Tensors<2>{kept[0], grad_y});
  const std::vector<Tensor> out = gradients(in, needs);
  with_storage_type(args.dtype(), [&]<typename T>() {
    kernels::glr_attention_backward<T>(
        kernel_inputs<T>(args, flat, factor, sequences, retrieved), read<T>(outer[0]),
        read<T>(outer[1]),
        {write_if<T>(needs[0], out[0]), write_if<T>(needs[1], out[1]),
         write_if<T>(needs[2], out[2]), write_if<T>(needs[3], out[3]),
         write_if<T>(needs[4], out[4]), write_if<T>(needs[5], out[5])});
  });
  return out;
}

struct Op {
  static constexpr char kName[] = "retrieved_glr";
  static constexpr char kInputs[] =
      "Tensor q, Tensor k, Tensor v, Tensor gate, Tensor d, Tensor d_self, Tensor indices";
  static constexpr char kTail[] = "float? scale=None";
  static constexpr bool kKeepsOutput = true;
  static constexpr auto* kForward = forward_cpu;
  static constexpr auto* kBackward = backward_cpu;
  static constexpr auto* kForwardMeta = forward_meta;
  static constexpr auto* kBackwardMeta = backward_meta;
};
using Operator = Saved<Op, 7, Scale>;

TORCH_LIBRARY_FRAGMENT(hopmix, m) { Operator::define(m); }
TORCH_LIBRARY_IMPL(hopmix, CPU, m) { Operator::implement_cpu(m); }
TORCH_LIBRARY_IMPL(hopmix, Meta, m) { Operator::implement_meta(m); }
TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { Operator::implement_autograd(m); }

}  // namespace

Tensor retrieved_glr(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                     const Tensor& d, const Tensor& d_self, const Tensor& indices,
                     std::optional<double> scale, const std::optional<Tensor>& cu_seqlens) {
  return Operator::call({q, k, v, gate, d, d_self, indices}, scale, cu_seqlens);
}

}  // namespace hopmix::ops
