// delta_rule, gated_delta_rule and kda: schemas and checks. The mathematics is in
// kernels/chunked/README.md.
#include <torch/library.h>

#include "hopmix/ops/chunked_operator.h"
#include "hopmix/ops/ops.h"

namespace hopmix::ops {
namespace {

struct Delta {
  static constexpr char kName[] = "delta_rule";
  static constexpr char kInputs[] = "Tensor q, Tensor k, Tensor v, Tensor beta";

  static void check(Arguments& args, const Tensors<4>& in) {
    args.tensor("beta", in[3], {"B", "T", "H"});
  }

  static Gates gates(const Tensors<4>& in) { return {{}, in[3]}; }
};

struct GatedDelta {
  static constexpr char kName[] = "gated_delta_rule";
  static constexpr char kInputs[] = "Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor beta";

  static void check(Arguments& args, const Tensors<5>& in) {
    args.tensor("log_decay", in[3], {"B", "T", "H"});
    args.tensor("beta", in[4], {"B", "T", "H"});
  }

  static Gates gates(const Tensors<5>& in) { return {in[3], in[4]}; }
};

struct Kda {
  static constexpr char kName[] = "kda";
  static constexpr const char* kInputs = GatedDelta::kInputs;

  static void check(Arguments& args, const Tensors<5>& in) {
    args.tensor("log_decay", in[3], {"B", "T", "H", "DK"});
    args.tensor("beta", in[4], {"B", "T", "H"});
  }

  static Gates gates(const Tensors<5>& in) { return {in[3], in[4]}; }
};

using DeltaOperator = ChunkedOperator<Delta, 4>;
using GatedDeltaOperator = ChunkedOperator<GatedDelta, 5>;
using KdaOperator = ChunkedOperator<Kda, 5>;

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  DeltaOperator::define(m);
  GatedDeltaOperator::define(m);
  KdaOperator::define(m);
}
TORCH_LIBRARY_IMPL(hopmix, CPU, m) {
  DeltaOperator::implement_cpu(m);
  GatedDeltaOperator::implement_cpu(m);
  KdaOperator::implement_cpu(m);
}
TORCH_LIBRARY_IMPL(hopmix, Meta, m) {
  DeltaOperator::implement_meta(m);
  GatedDeltaOperator::implement_meta(m);
  KdaOperator::implement_meta(m);
}
TORCH_LIBRARY_IMPL(hopmix, Autograd, m) {
  DeltaOperator::implement_autograd(m);
  GatedDeltaOperator::implement_autograd(m);
  KdaOperator::implement_autograd(m);
}

}  // namespace

std::tuple<Tensor, Tensor> delta_rule(const Tensor& q, const Tensor& k, const Tensor& v,
                                      const Tensor& beta, std::optional<double> scale,
                                      const std::optional<Tensor>& initial_state,
                                      const std::optional<Tensor>& cu_seqlens) {
  return DeltaOperator::call({q, k, v, beta}, scale, initial_state, cu_seqlens);
}

std::tuple<Tensor, Tensor> gated_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v,
                                            const Tensor& log_decay, const Tensor& beta,
                                            std::optional<double> scale,
                                            const std::optional<Tensor>& initial_state,
                                            const std::optional<Tensor>& cu_seqlens) {
  return GatedDeltaOperator::call({q, k, v, log_decay, beta}, scale, initial_state, cu_seqlens);
}

std::tuple<Tensor, Tensor> kda(const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& log_decay, const Tensor& beta,
                               std::optional<double> scale,
                               const std::optional<Tensor>& initial_state,
                               const std::optional<Tensor>& cu_seqlens) {
  return KdaOperator::call({q, k, v, log_decay, beta}, scale, initial_state, cu_seqlens);
}

}  // namespace hopmix::ops
