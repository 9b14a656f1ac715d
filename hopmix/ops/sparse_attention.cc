// sparse_attention: checks, CPU and meta kernels, autograd. The mathematics is in
// kernels/rows/sparse_attention.h.
#include "hopmix/kernels/rows/sparse_attention.h"

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
using Needs = std::array<bool, 3>;

Arguments check(const std::string& op, const Tensors<3>& in, const PatternArg& pattern, Cu cu) {
  const auto& [q, k, v] = in;
  Arguments args(op);
  args.tensor("q", q, {"B", "T", "H", "DK"});
  args.tensor("k", k, {"B", "T", "G", "DK"});
  args.tensor("v", v, {"B", "T", "G", "DV"});
  args.grouped_heads();
  args.pattern(pattern);
  args.cu_seqlens(cu);
  return args;
}

template <typename T>
kernels::SparseAttentionInputs<T> kernel_inputs(const Arguments& args, const Tensors<3>& in,
                                                bool include_self, double scale,
                                                const kernels::Sequences& sequences,
                                                const BoundPattern& pattern) {
  const auto& [q, k, v] = in;
  return {read<T>(q),     read<T>(k),      read<T>(v),      args.size("H"),
          args.size("G"), args.size("DK"), args.size("DV"), scale,
          include_self,   sequences,       pattern.rows()};
}

Tensor forward_meta(const Tensors<3>& in, const PatternArg& pattern, bool, std::optional<double>,
                    Cu cu) {
  return check("sparse_attention", in, pattern, cu).empty({"B", "T", "H", "DV"});
}

Tensor forward_cpu(const Tensors<3>& in, const PatternArg& pattern, bool include_self,
                   std::optional<double> scale, Cu cu) {
  const Arguments args = check("sparse_attention", in, pattern, cu);
  const double factor = args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const BoundPattern bound(args, pattern, sequences.longest());
  const Tensors<3> flat = contiguous(in);
  const Tensor y = args.empty({"B", "T", "H", "DV"});
  with_storage_type(y.scalar_type(), [&]<typename T>() {
    kernels::sparse_attention(kernel_inputs<T>(args, flat, include_self, factor, sequences, bound),
                              write<T>(y));
  });
  return y;
}

// grad_y, then the inputs.
Tensors<3> inputs_of(const Tensors<4>& all) { return {all[1], all[2], all[3]}; }

Arguments check_backward(const Tensors<4>& all, const PatternArg& pattern, Cu cu) {
  Arguments args = check("sparse_attention_backward", inputs_of(all), pattern, cu);
  args.tensor("grad_y", all[0], {"B", "T", "H", "DV"});
  return args;
}

std::vector<Tensor> backward_meta(const Tensors<4>& all, const PatternArg& pattern, bool,
                                  std::optional<double>, Cu cu, Needs needs) {
  check_backward(all, pattern, cu);
  return gradients(inputs_of(all), needs);
}

std::vector<Tensor> backward_cpu(const Tensors<4>& all, const PatternArg& pattern,
                                 bool include_self, std::optional<double> scale, Cu cu,
                                 Needs needs) {
  const Arguments args = check_backward(all, pattern, cu);
  const double factor = args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const BoundPattern bound(args, pattern, sequences.longest());
  const Tensors<4> flat = contiguous(all);
  const std::vector<Tensor> out = gradients(inputs_of(all), needs);
  with_storage_type(flat[0].scalar_type(), [&]<typename T>() {
    kernels::sparse_attention_backward<T>(
        kernel_inputs<T>(args, inputs_of(flat), include_self, factor, sequences, bound),
        read<T>(flat[0]),
        {write_if<T>(needs[0], out[0]), write_if<T>(needs[1], out[1]),
         write_if<T>(needs[2], out[2])});
  });
  return out;
}

struct Op {
  static constexpr char kName[] = "hopmix::sparse_attention";
  static constexpr auto* kForward = forward_cpu;
  static constexpr auto* kBackward = backward_cpu;
};

constexpr char kInputs[] = "Tensor q, Tensor k, Tensor v";

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  define_both(m, "sparse_attention", kInputs,
              "bool include_self, float? scale=None, Tensor? cu_seqlens=None) -> Tensor");
  define_both(m, "sparse_attention_backward", "Tensor grad_y, "s + kInputs,
              "bool include_self, float? scale, Tensor? cu_seqlens, bool[3] needs) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(hopmix, CPU, m) {
  Overloads<forward_cpu>::implement(m, "sparse_attention");
  Overloads<backward_cpu>::implement(m, "sparse_attention_backward");
}

TORCH_LIBRARY_IMPL(hopmix, Meta, m) {
  Overloads<forward_meta>::implement(m, "sparse_attention");
  Overloads<backward_meta>::implement(m, "sparse_attention_backward");
}

TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { AutogradOf<Op>::implement(m); }

}  // namespace

Tensor sparse_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const PatternArg& pattern, bool include_self, std::optional<double> scale,
                        const std::optional<Tensor>& cu_seqlens) {
  return Overloads<forward_cpu>::call("hopmix::sparse_attention", {q, k, v}, pattern, include_self,
                                      scale, cu_seqlens);
}

}  // namespace hopmix::ops
