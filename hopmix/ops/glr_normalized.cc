// glr_normalized: checks, CPU and meta kernels, autograd. The mathematics is in
// kernels/rows/glr_normalized.h.
#include "hopmix/kernels/rows/glr_normalized.h"

#include <c10/util/Exception.h>
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
using Needs = std::array<bool, 4>;
using Outputs = std::tuple<Tensor, Tensor>;  // y, log_z

Arguments check(const std::string& op, const Tensors<4>& in, const PatternArg& pattern, Cu cu) {
  const auto& [log_alpha_diag, log_alpha, log_beta, x] = in;
  Arguments args(op);
  args.tensor("x", x, {"B", "T", "H", "D"});
  args.tensor("log_alpha_diag", log_alpha_diag, {"B", "H", "T"});
  args.tensor("log_alpha", log_alpha, {"B", "H", "nnz"});
  args.tensor("log_beta", log_beta, {"B", "H", "nnz"});
  args.pattern(pattern);
  args.cu_seqlens(cu);
  return args;
}

// What a kernel reads beside the tensors.
struct Bound {
  kernels::Sequences sequences;
  BoundPattern pattern;
  kernels::ReadLayout reads;

  Bound(const Arguments& args, const PatternArg& given, Cu cu)
      : sequences(bind_sequences(args, cu)),
        pattern(args, given, sequences.longest()),
        reads(pattern.rows(), sequences) {
    TORCH_CHECK_VALUE(args.size("B") == 0 || args.size("nnz") == reads.nnz, args.op(),
                      ": log_alpha has ", args.size("nnz"),
                      " entries a head, but must have one for each of the pattern's ", reads.nnz,
                      " reads");
  }
};

template <typename T>
kernels::GlrNormalizedInputs<T> kernel_inputs(const Arguments& args, const Tensors<4>& in,
                                              const Bound& bound) {
  const auto& [log_alpha_diag, log_alpha, log_beta, x] = in;
  return {
      read<T>(log_alpha_diag), read<T>(log_alpha), read<T>(log_beta),    read<T>(x), args.size("H"),
      args.size("D"),          bound.sequences,    bound.pattern.rows(), bound.reads};
}

// log_z has the dtype of a state: as bfloat16 it would say nothing.
Outputs new_outputs(const Arguments& args) {
  return {args.empty({"B", "T", "H", "D"}), args.empty({"B", "T", "H"}, args.state_dtype())};
}

Outputs forward_meta(const Tensors<4>& in, const PatternArg& pattern, Cu cu) {
  return new_outputs(check("glr_normalized", in, pattern, cu));
}

Outputs forward_cpu(const Tensors<4>& in, const PatternArg& pattern, Cu cu) {
  const Arguments args = check("glr_normalized", in, pattern, cu);
  const Bound bound(args, pattern, cu);
  const Tensors<4> flat = contiguous(in);
  const Outputs out = new_outputs(args);
  with_storage_type(flat[3].scalar_type(), [&]<typename T>() {
    kernels::glr_normalized(kernel_inputs<T>(args, flat, bound), write<T>(std::get<0>(out)),
                            write<kernels::Accumulator<T>>(std::get<1>(out)));
  });
  return out;
}

// grad_y, grad_log_z and y, then the inputs.
Tensors<4> inputs_of(const Tensors<7>& all) { return {all[3], all[4], all[5], all[6]}; }

Arguments check_backward(const Tensors<7>& all, const PatternArg& pattern, Cu cu) {
  Arguments args = check("glr_normalized_backward", inputs_of(all), pattern, cu);
  args.tensor("grad_y", all[0], {"B", "T", "H", "D"});
  args.state("grad_log_z", all[1], {"B", "T", "H"});
  args.tensor("y", all[2], {"B", "T", "H", "D"});
  return args;
}

std::vector<Tensor> backward_meta(const Tensors<7>& all, const PatternArg& pattern, Cu cu,
                                  Needs needs) {
  check_backward(all, pattern, cu);
  return gradients(inputs_of(all), needs);
}

std::vector<Tensor> backward_cpu(const Tensors<7>& all, const PatternArg& pattern, Cu cu,
                                 Needs needs) {
  const Arguments args = check_backward(all, pattern, cu);
  const Bound bound(args, pattern, cu);
  const Tensors<7> flat = contiguous(all);
  const std::vector<Tensor> out = gradients(inputs_of(all), needs);
  with_storage_type(flat[0].scalar_type(), [&]<typename T>() {
    kernels::glr_normalized_backward<T>(
        kernel_inputs<T>(args, inputs_of(flat), bound), read<T>(flat[2]), read<T>(flat[0]),
        read<kernels::Accumulator<T>>(flat[1]),
        {write_if<T>(needs[0], out[0]), write_if<T>(needs[1], out[1]),
         write_if<T>(needs[2], out[2]), write_if<T>(needs[3], out[3])});
  });
  return out;
}

struct Op {
  static constexpr char kName[] = "hopmix::glr_normalized";
  static constexpr auto* kForward = forward_cpu;
  static constexpr auto* kBackward = backward_cpu;
};

constexpr char kInputs[] = "Tensor log_alpha_diag, Tensor log_alpha, Tensor log_beta, Tensor x";

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  define_both(m, "glr_normalized", kInputs, "Tensor? cu_seqlens=None) -> (Tensor y, Tensor log_z)");
  define_both(m, "glr_normalized_backward",
              "Tensor grad_y, Tensor grad_log_z, Tensor y, "s + kInputs,
              "Tensor? cu_seqlens, bool[4] needs) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(hopmix, CPU, m) {
  Overloads<forward_cpu>::implement(m, "glr_normalized");
  Overloads<backward_cpu>::implement(m, "glr_normalized_backward");
}

TORCH_LIBRARY_IMPL(hopmix, Meta, m) {
  Overloads<forward_meta>::implement(m, "glr_normalized");
  Overloads<backward_meta>::implement(m, "glr_normalized_backward");
}

TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { AutogradOf<Op>::implement(m); }

}  // namespace

std::tuple<Tensor, Tensor> glr_normalized(const Tensor& log_alpha_diag, const Tensor& log_alpha,
                                          const Tensor& log_beta, const Tensor& x,
                                          const PatternArg& pattern,
                                          const std::optional<Tensor>& cu_seqlens) {
  return Overloads<forward_cpu>::call(
      "hopmix::glr_normalized", {log_alpha_diag, log_alpha, log_beta, x}, pattern, cu_seqlens);
}

}  // namespace hopmix::ops
