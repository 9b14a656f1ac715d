// glr_attention: checks, CPU and meta kernels, autograd. The mathematics is in
// kernels/rows/glr_attention.h.
#include "hopmix/kernels/rows/glr_attention.h"

#include <torch/library.h>

#include "hopmix/ops/autograd.h"
#include "hopmix/ops/checks.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/overloads.h"
#include "hopmix/ops/tensors.h"

namespace hopmix::ops {
namespace {

using namespace std::string_literals;  // NOLINT: literals are made for this

using Cu = const std::optional<Tensor>&;
using Needs = std::array<bool, 6>;

Arguments check(const std::string& op, const Tensors<6>& in, const PatternArg& pattern, Cu cu) {
  const auto& [q, k, v, gate, d, d_self] = in;
  Arguments args(op);
  args.tensor("q", q, {"B", "T", "H", "DK"});
  args.tensor("k", k, {"B", "T", "G", "DK"});
  args.tensor("v", v, {"B", "T", "G", "DV"});
  args.tensor("gate", gate, {"B", "T", "H"});
  args.tensor("d", d, {"B", "T", "H"});
  args.tensor("d_self", d_self, {"B", "T", "H"});
  args.grouped_heads();
  args.pattern(pattern);
  args.cu_seqlens(cu);
  return args;
}

template <typename T>
kernels::GlrAttentionInputs<T> kernel_inputs(const Arguments& args, const Tensors<6>& in,
                                             double scale, const kernels::Sequences& sequences,
                                             const BoundPattern& pattern) {
  const auto& [q, k, v, gate, d, d_self] = in;
  return {read<T>(q),      read<T>(k),     read<T>(v),     read<T>(gate),   read<T>(d),
          read<T>(d_self), args.size("H"), args.size("G"), args.size("DK"), args.size("DV"),
          scale,           sequences,      pattern.rows()};
}

Tensor forward_meta(const Tensors<6>& in, const PatternArg& pattern, std::optional<double>, Cu cu) {
  return check("glr_attention", in, pattern, cu).empty({"B", "T", "H", "DV"});
}

Tensor forward_cpu(const Tensors<6>& in, const PatternArg& pattern, std::optional<double> scale,
                   Cu cu) {
  const Arguments args = check("glr_attention", in, pattern, cu);
  const double factor = args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const BoundPattern bound(args, pattern, sequences.longest());
  const Tensors<6> flat = contiguous(in);
  const Tensor y = args.empty({"B", "T", "H", "DV"});
  with_storage_type(y.scalar_type(), [&]<typename T>() {
    kernels::glr_attention(kernel_inputs<T>(args, flat, factor, sequences, bound), write<T>(y));
  });
  return y;
}

// grad_y and y, then the inputs.
Tensors<6> inputs_of(const Tensors<8>& all) {
  return {all[2], all[3], all[4], all[5], all[6], all[7]};
}

Arguments check_backward(const Tensors<8>& all, const PatternArg& pattern, Cu cu) {
  Arguments args = check("glr_attention_backward", inputs_of(all), pattern, cu);
  args.tensor("grad_y", all[0], {"B", "T", "H", "DV"});
  args.tensor("y", all[1], {"B", "T", "H", "DV"});
  return args;
}

std::vector<Tensor> backward_meta(const Tensors<8>& all, const PatternArg& pattern,
                                  std::optional<double>, Cu cu, Needs needs) {
  check_backward(all, pattern, cu);
  return gradients(inputs_of(all), needs);
}

std::vector<Tensor> backward_cpu(const Tensors<8>& all, const PatternArg& pattern,
                                 std::optional<double> scale, Cu cu, Needs needs) {
  const Arguments args = check_backward(all, pattern, cu);
  const double factor = args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const BoundPattern bound(args, pattern, sequences.longest());
  const Tensors<8> flat = contiguous(all);
  const std::vector<Tensor> out = gradients(inputs_of(all), needs);
  with_storage_type(flat[0].scalar_type(), [&]<typename T>() {
    kernels::glr_attention_backward<T>(
        kernel_inputs<T>(args, inputs_of(flat), factor, sequences, bound), read<T>(flat[1]),
        read<T>(flat[0]),
        {write_if<T>(needs[0], out[0]), write_if<T>(needs[1], out[1]),
         write_if<T>(needs[2], out[2]), write_if<T>(needs[3], out[3]),
         write_if<T>(needs[4], out[4]), write_if<T>(needs[5], out[5])});
  });
  return out;
}

struct Op {
  static constexpr char kName[] = "hopmix::glr_attention";
  static constexpr auto* kForward = forward_cpu;
  static constexpr auto* kBackward = backward_cpu;
};

constexpr char kInputs[] = "Tensor q, Tensor k, Tensor v, Tensor gate, Tensor d, Tensor d_self";

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  define_both(m, "glr_attention", kInputs, "float? scale=None, Tensor? cu_seqlens=None) -> Tensor");
  define_both(m, "glr_attention_backward", "Tensor grad_y, Tensor y, "s + kInputs,
              "float? scale, Tensor? cu_seqlens, bool[6] needs) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(hopmix, CPU, m) {
  Overloads<forward_cpu>::implement(m, "glr_attention");
  Overloads<backward_cpu>::implement(m, "glr_attention_backward");
}

TORCH_LIBRARY_IMPL(hopmix, Meta, m) {
  Overloads<forward_meta>::implement(m, "glr_attention");
  Overloads<backward_meta>::implement(m, "glr_attention_backward");
}

TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { AutogradOf<Op>::implement(m); }

}  // namespace

Tensor glr_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                     const Tensor& d, const Tensor& d_self, const PatternArg& pattern,
                     std::optional<double> scale, const std::optional<Tensor>& cu_seqlens) {
  return Overloads<forward_cpu>::call("hopmix::glr_attention", {q, k, v, gate, d, d_self}, pattern,
                                      scale, cu_seqlens);
}

}  // namespace hopmix::ops
