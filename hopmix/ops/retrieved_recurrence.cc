// retrieved_recurrence: checks, CPU and meta kernels, autograd. The mathematics is in
// kernels/rows/retrieved_recurrence.h.
#include "hopmix/kernels/rows/retrieved_recurrence.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "hopmix/ops/checks.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/saved_autograd.h"

namespace hopmix::ops {
namespace {

using Cu = const std::optional<Tensor>&;
using Scale = std::optional<double>;
using Needs = std::array<bool, 5>;

Arguments check(const std::string& op, const Tensors<5>& in, int64_t hops, Cu cu) {
  const auto& [q, k, v, gate, indices] = in;
  Arguments args(op);
  args.tensor("q", q, {"B", "T", "H", "DK"});
  args.tensor("k", k, {"B", "T", "G", "DK"});
  args.tensor("v", v, {"B", "T", "G", "DV"});
  args.tensor("gate", gate, {"B", "T", "H"});
  args.grouped_heads();
  args.retrieved(indices);
  args.cu_seqlens(cu);
  TORCH_CHECK_VALUE(hops >= 1, op, ": hops is ", hops, ", but must be at least 1");
  return args;
}

// [B, T, H, hops + 1, DV].
std::vector<c10::SymInt> output_size(const Tensors<5>& in, int64_t hops) {
  return {in[0].sym_size(0), in[0].sym_size(1), in[0].sym_size(2), hops + 1, in[2].sym_size(3)};
}

template <typename T>
kernels::RetrievedRecurrenceInputs<T> kernel_inputs(const Arguments& args, const Tensors<5>& flat,
                                                    int64_t hops, double scale,
                                                    const kernels::Sequences& sequences,
                                                    const BoundRetrieval& retrieved) {
  const auto& [q, k, v, gate, indices] = flat;
  return {read<T>(q),     read<T>(k),     read<T>(v),      read<T>(gate),
          args.size("H"), args.size("G"), args.size("DK"), args.size("DV"),
          hops,           scale,          sequences,       retrieved.rows(args.size("H"))};
}

std::vector<Tensor> forward_meta(const Tensors<5>& in, int64_t hops, Scale, Cu cu) {
  check("retrieved_recurrence", in, hops, cu);
  return {at::empty_symint(output_size(in, hops), in[0].options())};
}

std::vector<Tensor> forward_cpu(const Tensors<5>& in, int64_t hops, Scale scale, Cu cu) {
  const Arguments args = check("retrieved_recurrence", in, hops, cu);
  const double factor = args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const BoundRetrieval retrieved(args, in[4], sequences, /*strictly_earlier=*/true);
  const Tensors<5> flat = contiguous(in);
  const Tensor z = at::empty_symint(output_size(in, hops), in[0].options());
  with_storage_type(args.dtype(), [&]<typename T>() {
    kernels::retrieved_recurrence(kernel_inputs<T>(args, flat, hops, factor, sequences, retrieved),
                                  write<T>(z));
  });
  return {z};
}

Arguments check_backward(const Tensor& grad_y, at::TensorList kept, const Tensors<5>& in,
                         int64_t hops, Cu cu) {
  Arguments args = check("retrieved_recurrence_backward", in, hops, cu);
  args.tensor("grad_y", grad_y, {"B", "T", "H", "blocks", "DV"});
  TORCH_CHECK_VALUE(grad_y.sym_size(3) == hops + 1, args.op(), ": grad_y is ", grad_y.sym_sizes(),
                    ", but must have hops + 1 = ", hops + 1, " blocks");
  args.kept(kept, 0);
  return args;
}

std::vector<Tensor> backward_meta(const Tensor& grad_y, at::TensorList kept, const Tensors<5>& in,
                                  int64_t hops, Scale, Cu cu, Needs needs) {
  check_backward(grad_y, kept, in, hops, cu);
  return gradients(in, needs);
}

std::vector<Tensor> backward_cpu(const Tensor& grad_y, at::TensorList kept, const Tensors<5>& in,
                                 int64_t hops, Scale scale, Cu cu, Needs needs) {
  const Arguments args = check_backward(grad_y, kept, in, hops, cu);
  const double factor = args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const BoundRetrieval retrieved(args, in[4], sequences, /*strictly_earlier=*/true);
  const Tensors<5> flat = contiguous(in);
  const Tensor flat_grad = grad_y.contiguous();
  const std::vector<Tensor> out = gradients(in, needs);
  with_storage_type(args.dtype(), [&]<typename T>() {
    kernels::retrieved_recurrence_backward<T>(
        kernel_inputs<T>(args, flat, hops, factor, sequences, retrieved), read<T>(flat_grad),
        {write_if<T>(needs[0], out[0]), write_if<T>(needs[1], out[1]),
         write_if<T>(needs[2], out[2]), write_if<T>(needs[3], out[3])});
  });
  return out;
}

struct Op {
  static constexpr char kName[] = "retrieved_recurrence";
  static constexpr char kInputs[] = "Tensor q, Tensor k, Tensor v, Tensor gate, Tensor indices";
  static constexpr char kTail[] = "int hops, float? scale=None";
  static constexpr auto* kForward = forward_cpu;
  static constexpr auto* kBackward = backward_cpu;
  static constexpr auto* kForwardMeta = forward_meta;
  static constexpr auto* kBackwardMeta = backward_meta;
};
using Operator = Saved<Op, 5, int64_t, Scale>;

TORCH_LIBRARY_FRAGMENT(hopmix, m) { Operator::define(m); }
TORCH_LIBRARY_IMPL(hopmix, CPU, m) { Operator::implement_cpu(m); }
TORCH_LIBRARY_IMPL(hopmix, Meta, m) { Operator::implement_meta(m); }
TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { Operator::implement_autograd(m); }

}  // namespace

Tensor retrieved_recurrence(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                            const Tensor& indices, int64_t hops, std::optional<double> scale,
                            const std::optional<Tensor>& cu_seqlens) {
  return Operator::call({q, k, v, gate, indices}, hops, scale, cu_seqlens);
}

}  // namespace hopmix::ops
