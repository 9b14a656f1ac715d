// glr_softmax: checks, CPU and meta kernels, autograd. The mathematics is in
// kernels/rows/glr_softmax.h.
#include "hopmix/kernels/rows/glr_softmax.h"

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
  const auto& [q, k, v, d, d_self, g] = in;
  Arguments args(op);
  args.tensor("q", q, {"B", "T", "H", "DK"});
  args.tensor("k", k, {"B", "T", "G", "DK"});
  args.tensor("v", v, {"B", "T", "G", "DV"});
  args.tensor("d", d, {"B", "T", "H"});
  args.tensor("d_self", d_self, {"B", "T", "H"});
  args.tensor("g", g, {"B", "T", "H"});
  args.grouped_heads();
  args.pattern(pattern);
  args.cu_seqlens(cu);
  return args;
}

template <typename T>
kernels::GlrSoftmaxInputs<T> kernel_inputs(const Arguments& args, const Tensors<6>& in,
                                           double scale, bool gate_on_read,
                                           const kernels::Sequences& sequences,
                                           const BoundPattern& pattern) {
  const auto& [q, k, v, d, d_self, g] = in;
  return {read<T>(q), read<T>(k),     read<T>(v),     read<T>(d),      read<T>(d_self),
          read<T>(g), args.size("H"), args.size("G"), args.size("DK"), args.size("DV"),
          scale,      gate_on_read,   sequences,      pattern.rows()};
}

Tensor forward_meta(const Tensors<6>& in, const PatternArg& pattern, std::optional<double>, bool,
                    Cu cu) {
  return check("glr_softmax", in, pattern, cu).empty({"B", "T", "H", "DV"});
}

Tensor forward_cpu(const Tensors<6>& in, const PatternArg& pattern, std::optional<double> scale,
                   bool gate_on_read, Cu cu) {
  const Arguments args = check("glr_softmax", in, pattern, cu);
  const double factor = args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const BoundPattern bound(args, pattern, sequences.longest());
  const Tensors<6> flat = contiguous(in);
  const Tensor y = args.empty({"B", "T", "H", "DV"});
  with_storage_type(y.scalar_type(), [&]<typename T>() {
    kernels::glr_softmax(kernel_inputs<T>(args, flat, factor, gate_on_read, sequences, bound),
                         write<T>(y));
  });
  return y;
}

// grad_y and y, then the inputs.
Tensors<6> inputs_of(const Tensors<8>& all) {
  return {all[2], all[3], all[4], all[5], all[6], all[7]};
}

Arguments check_backward(const Tensors<8>& all, const PatternArg& pattern, Cu cu) {
  Arguments args = check("glr_softmax_backward", inputs_of(all), pattern, cu);
  args.tensor("grad_y", all[0], {"B", "T", "H", "DV"});
  args.tensor("y", all[1], {"B", "T", "H", "DV"});
  return args;
}

std::vector<Tensor> backward_meta(const Tensors<8>& all, const PatternArg& pattern,
                                  std::optional<double>, bool, Cu cu, Needs needs) {
  check_backward(all, pattern, cu);
  return gradients(inputs_of(all), needs);
}

std::vector<Tensor> backward_cpu(const Tensors<8>& all, const PatternArg& pattern,
                                 std::optional<double> scale, bool gate_on_read, Cu cu,
                                 Needs needs) {
  const Arguments args = check_backward(all, pattern, cu);
  const double factor = args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const BoundPattern bound(args, pattern, sequences.longest());
  const Tensors<8> flat = contiguous(all);
  const std::vector<Tensor> out = gradients(inputs_of(all), needs);
  with_storage_type(flat[0].scalar_type(), [&]<typename T>() {
    kernels::glr_softmax_backward<T>(
        kernel_inputs<T>(args, inputs_of(flat), factor, gate_on_read, sequences, bound),
        read<T>(flat[1]), read<T>(flat[0]),
        {write_if<T>(needs[0], out[0]), write_if<T>(needs[1], out[1]),
         write_if<T>(needs[2], out[2]), write_if<T>(needs[3], out[3]),
         write_if<T>(needs[4], out[4]), write_if<T>(needs[5], out[5])});
  });
  return out;
}

struct Op {
  static constexpr char kName[] = "hopmix::glr_softmax";
  static constexpr auto* kForward = forward_cpu;
  static constexpr auto* kBackward = backward_cpu;
};

constexpr char kInputs[] = "Tensor q, Tensor k, Tensor v, Tensor d, Tensor d_self, Tensor g";

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  define_both(m, "glr_softmax", kInputs,
              "float? scale=None, bool gate_on_read=False, Tensor? cu_seqlens=None) -> Tensor");
  define_both(m, "glr_softmax_backward", "Tensor grad_y, Tensor y, "s + kInputs,
              "float? scale, bool gate_on_read, Tensor? cu_seqlens, bool[6] needs) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(hopmix, CPU, m) {
  Overloads<forward_cpu>::implement(m, "glr_softmax");
  Overloads<backward_cpu>::implement(m, "glr_softmax_backward");
}

TORCH_LIBRARY_IMPL(hopmix, Meta, m) {
  Overloads<forward_meta>::implement(m, "glr_softmax");
  Overloads<backward_meta>::implement(m, "glr_softmax_backward");
}

TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { AutogradOf<Op>::implement(m); }

}  // namespace

Tensor glr_softmax(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& d,
                   const Tensor& d_self, const Tensor& g, const PatternArg& pattern,
                   std::optional<double> scale, bool gate_on_read,
                   const std::optional<Tensor>& cu_seqlens) {
  return Overloads<forward_cpu>::call("hopmix::glr_softmax", {q, k, v, d, d_self, g}, pattern,
                                      scale, gate_on_read, cu_seqlens);
}

}  // namespace hopmix::ops
