// linear_attention: S_t = S_{t-1} + k_t v_t^T, o_t = scale q_t S_t. The mathematics is in
// kernels/chunked/README.md.
#include "hopmix/ops/chunked_operator.h"
#include "hopmix/ops/ops.h"

namespace hopmix::ops {
namespace {

struct Op {
  static constexpr char kName[] = "linear_attention";
  static constexpr char kInputs[] = "Tensor q, Tensor k, Tensor v";

  static Gates gates(const Tensors<3>&) { return {}; }
};
using Operator = ChunkedOperator<Op, 3>;

TORCH_LIBRARY_FRAGMENT(hopmix, m) { Operator::define(m); }
TORCH_LIBRARY_IMPL(hopmix, CPU, m) { Operator::implement_cpu(m); }
TORCH_LIBRARY_IMPL(hopmix, Meta, m) { Operator::implement_meta(m); }
TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { Operator::implement_autograd(m); }

}  // namespace

std::tuple<Tensor, Tensor> linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                            std::optional<double> scale,
                                            const std::optional<Tensor>& initial_state,
                                            const std::optional<Tensor>& cu_seqlens) {
  return Operator::call({q, k, v}, scale, initial_state, cu_seqlens);
}

}  // namespace hopmix::ops
