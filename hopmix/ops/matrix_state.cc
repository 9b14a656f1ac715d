// linear_attention, ssd, gla, delta_rule, gated_delta_rule and kda: recurrences with a matrix state
// (kernels/chunked/README.md), which differ in their decays and in what they write.
#include "hopmix/kernels/chunked/delta_rule.h"
#include "hopmix/kernels/chunked/linear_attention.h"
#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

using States = std::tuple<Tensor, Tensor>;

template <typename T>
kernels::MatrixStateInputs<T> inputs(const Call& c) {
  return {c.in<T>("q"),
          c.in<T>("k"),
          c.in<T>("v"),
          c.in<T>("log_decay"),
          c.has("log_decay") && c.tensor("log_decay").dim() == 4,  // one a key channel
          c.in<T>("beta"),
          c.in<kernels::Accumulator<T>>("initial_state"),
          c.size("H"),
          c.size("G"),
          c.size("DK"),
          c.size("DV"),
          c.scale(),
          c.sequences()};
}

void forward(const Call& c) {
  c.with_type([&]<typename T>() {
    const auto in = inputs<T>(c);
    T* const o = c.out<T>("o");
    auto* const state = c.out<kernels::Accumulator<T>>("state");
    c.has("beta") ? kernels::delta_rule(in, o, state) : kernels::linear_attention(in, o, state);
  });
}

void backward(const Call& c) {
  c.with_type([&]<typename T>() {
    using A = kernels::Accumulator<T>;
    const auto in = inputs<T>(c);
    const T* const d_o = c.in<T>("grad_o");
    const A* const d_state = c.in<A>("grad_state");
    const kernels::MatrixStateGradients<T> to{c.grad<T>("q"),    c.grad<T>("k"),
                                              c.grad<T>("v"),    c.grad<T>("log_decay"),
                                              c.grad<T>("beta"), c.grad<A>("initial_state")};
    c.has("beta") ? kernels::delta_rule_backward(in, d_o, d_state, to)
                  : kernels::linear_attention_backward(in, d_o, d_state, to);
  });
}

Description describe(const char* name, std::vector<Argument> gates) {
  for (Argument argument :
       {option("float? scale=None"), state("Tensor? initial_state=None", {"N", "H", "DK", "DV"}),
        sequences()}) {
    gates.push_back(std::move(argument));
  }
  return {.name = name,
          .arguments = queries_keys_values(std::move(gates)),
          .outputs = {tensor("Tensor o", {"B", "T", "H", "DV"}),
                      state("Tensor state", {"N", "H", "DK", "DV"})},
          .some_gradients = true,
          .forward = forward,
          .backward = backward};
}

const auto decay = tensor("Tensor log_decay", {"B", "T", "H"});
const auto decays = tensor("Tensor log_decay", {"B", "T", "H", "DK"});
const auto share = tensor("Tensor beta", {"B", "T", "H"});

const Operator linear_attention_op(describe("linear_attention", {}));
const Operator ssd_op(describe("ssd", {decay}));
const Operator gla_op(describe("gla", {decays}));
const Operator delta_rule_op(describe("delta_rule", {share}));
const Operator gated_delta_rule_op(describe("gated_delta_rule", {decay, share}));
const Operator kda_op(describe("kda", {decays, share}));

}  // namespace

States linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        std::optional<double> scale, const std::optional<Tensor>& initial_state,
                        const std::optional<Tensor>& cu_seqlens) {
  return linear_attention_op.call<States>(q, k, v, scale, initial_state, cu_seqlens);
}

States ssd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
           std::optional<double> scale, const std::optional<Tensor>& initial_state,
           const std::optional<Tensor>& cu_seqlens) {
  return ssd_op.call<States>(q, k, v, log_decay, scale, initial_state, cu_seqlens);
}

States gla(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
           std::optional<double> scale, const std::optional<Tensor>& initial_state,
           const std::optional<Tensor>& cu_seqlens) {
  return gla_op.call<States>(q, k, v, log_decay, scale, initial_state, cu_seqlens);
}

States delta_rule(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                  std::optional<double> scale, const std::optional<Tensor>& initial_state,
                  const std::optional<Tensor>& cu_seqlens) {
  return delta_rule_op.call<States>(q, k, v, beta, scale, initial_state, cu_seqlens);
}

States gated_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
                        const Tensor& beta, std::optional<double> scale,
                        const std::optional<Tensor>& initial_state,
                        const std::optional<Tensor>& cu_seqlens) {
  return gated_delta_rule_op.call<States>(q, k, v, log_decay, beta, scale, initial_state,
                                          cu_seqlens);
}

States kda(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
           const Tensor& beta, std::optional<double> scale,
           const std::optional<Tensor>& initial_state, const std::optional<Tensor>& cu_seqlens) {
  return kda_op.call<States>(q, k, v, log_decay, beta, scale, initial_state, cu_seqlens);
}

}  // namespace hopmix::ops
