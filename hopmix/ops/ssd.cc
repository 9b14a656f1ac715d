// ssd: S_t = e^{g_t} S_{t-1} + k_t v_t^T, o_t = scale q_t S_t. The mathematics is in
// kernels/chunked/README.md.
#include "hopmix/ops/chunked_operator.h"
#include "hopmix/ops/ops.h"

namespace hopmix::ops {
namespace {

struct Op {
  static constexpr char kName[] = "ssd";
  static constexpr char kInputs[] = "Tensor q, Tensor k, Tensor v, Tensor log_decay";

  static void check(Arguments& args, const Tensors<4>& in) {
    args.tensor("log_decay", in[3], {"B", "T", "H"});
  }

  static Gates gates(const Tensors<4>& in) { return {in[3], {}}; }
};
using Operator = ChunkedOperator<Op, 4>;

TORCH_LIBRARY_FRAGMENT(hopmix, m) { Operator::define(m); }
TORCH_LIBRARY_IMPL(hopmix, CPU, m) { Operator::implement_cpu(m); }
TORCH_LIBRARY_IMPL(hopmix, Meta, m) { Operator::implement_meta(m); }
TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { Operator::implement_autograd(m); }

}  // namespace

std::tuple<Tensor, Tensor> ssd(const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& log_decay, std::optional<double> scale,
                               const std::optional<Tensor>& initial_state,
                               const std::optional<Tensor>& cu_seqlens) {
  return Operator::call({q, k, v, log_decay}, scale, initial_state, cu_seqlens);
}

}  // namespace hopmix::ops
