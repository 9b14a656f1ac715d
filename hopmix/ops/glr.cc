// glr: checks, CPU and meta kernels, autograd. The mathematics is in kernels/rows/glr.h.
#include "hopmix/kernels/rows/glr.h"

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

Arguments check(const std::string& op, const Tensors<4>& in, const PatternArg& pattern, Cu cu) {
  const auto& [alpha_diag, alpha, beta, x] = in;
  Arguments args(op);
  args.tensor("x", x, {"B", "T", "H", "D"});
  args.tensor("alpha_diag", alpha_diag, {"B", "H", "T"});
  args.tensor("alpha", alpha, {"B", "H", "nnz"});
  args.tensor("beta", beta, {"B", "H", "nnz"});
  args.pattern(pattern);
  args.cu_seqlens(cu);
  return args;
}

// Where the coefficients lie; their number is only known once the pattern is.
kernels::ReadLayout bind_reads(const Arguments& args, const kernels::Sequences& sequences,
                               const BoundPattern& pattern) {
  kernels::ReadLayout reads(pattern.rows(), sequences);
  TORCH_CHECK_VALUE(args.size("B") == 0 || args.size("nnz") == reads.nnz, args.op(), ": alpha has ",
                    args.size("nnz"),
                    " entries a head, but must have one for each of the pattern's ", reads.nnz,
                    " reads");
  return reads;
}

template <typename T>
kernels::GlrInputs<T> kernel_inputs(const Arguments& args, const Tensors<4>& in,
                                    const kernels::Sequences& sequences,
                                    const BoundPattern& pattern, const kernels::ReadLayout& reads) {
  const auto& [alpha_diag, alpha, beta, x] = in;
  return {read<T>(alpha_diag), read<T>(alpha), read<T>(beta),  read<T>(x), args.size("H"),
          args.size("D"),      sequences,      pattern.rows(), reads};
}

Tensor forward_meta(const Tensors<4>& in, const PatternArg& pattern, Cu cu) {
  return check("glr", in, pattern, cu).empty({"B", "T", "H", "D"});
}

Tensor forward_cpu(const Tensors<4>& in, const PatternArg& pattern, Cu cu) {
  const Arguments args = check("glr", in, pattern, cu);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const BoundPattern bound(args, pattern, sequences.longest());
  const kernels::ReadLayout reads = bind_reads(args, sequences, bound);
  const Tensors<4> flat = contiguous(in);
  const Tensor y = args.empty({"B", "T", "H", "D"});
  with_storage_type(y.scalar_type(), [&]<typename T>() {
    kernels::glr(kernel_inputs<T>(args, flat, sequences, bound, reads), write<T>(y));
  });
  return y;
}

// grad_y and y, then the inputs.
Tensors<4> inputs_of(const Tensors<6>& all) { return {all[2], all[3], all[4], all[5]}; }

Arguments check_backward(const Tensors<6>& all, const PatternArg& pattern, Cu cu) {
  Arguments args = check("glr_backward", inputs_of(all), pattern, cu);
  args.tensor("grad_y", all[0], {"B", "T", "H", "D"});
  args.tensor("y", all[1], {"B", "T", "H", "D"});
  return args;
}

std::vector<Tensor> backward_meta(const Tensors<6>& all, const PatternArg& pattern, Cu cu,
                                  Needs needs) {
  check_backward(all, pattern, cu);
  return gradients(inputs_of(all), needs);
}

std::vector<Tensor> backward_cpu(const Tensors<6>& all, const PatternArg& pattern, Cu cu,
                                 Needs needs) {
  const Arguments args = check_backward(all, pattern, cu);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const BoundPattern bound(args, pattern, sequences.longest());
  const kernels::ReadLayout reads = bind_reads(args, sequences, bound);
  const Tensors<6> flat = contiguous(all);
  const std::vector<Tensor> out = gradients(inputs_of(all), needs);
  with_storage_type(flat[0].scalar_type(), [&]<typename T>() {
    kernels::glr_backward<T>(kernel_inputs<T>(args, inputs_of(flat), sequences, bound, reads),
                             read<T>(flat[1]), read<T>(flat[0]),
                             {write_if<T>(needs[0], out[0]), write_if<T>(needs[1], out[1]),
                              write_if<T>(needs[2], out[2]), write_if<T>(needs[3], out[3])});
  });
  return out;
}

struct Op {
  static constexpr char kName[] = "hopmix::glr";
  static constexpr auto* kForward = forward_cpu;
  static constexpr auto* kBackward = backward_cpu;
};

constexpr char kInputs[] = "Tensor alpha_diag, Tensor alpha, Tensor beta, Tensor x";

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  define_both(m, "glr", kInputs, "Tensor? cu_seqlens=None) -> Tensor");
  define_both(m, "glr_backward", "Tensor grad_y, Tensor y, "s + kInputs,
              "Tensor? cu_seqlens, bool[4] needs) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(hopmix, CPU, m) {
  Overloads<forward_cpu>::implement(m, "glr");
  Overloads<backward_cpu>::implement(m, "glr_backward");
}

TORCH_LIBRARY_IMPL(hopmix, Meta, m) {
  Overloads<forward_meta>::implement(m, "glr");
  Overloads<backward_meta>::implement(m, "glr_backward");
}

TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { AutogradOf<Op>::implement(m); }

}  // namespace

Tensor glr(const Tensor& alpha_diag, const Tensor& alpha, const Tensor& beta, const Tensor& x,
           const PatternArg& pattern, const std::optional<Tensor>& cu_seqlens) {
  return Overloads<forward_cpu>::call("hopmix::glr", {alpha_diag, alpha, beta, x}, pattern,
                                      cu_seqlens);
}

}  // namespace hopmix::ops
