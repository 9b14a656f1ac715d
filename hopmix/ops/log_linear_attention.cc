// log_linear_attention and log_linear_delta_rule. The mathematics is in kernels/chunked/README.md.
#include "hopmix/kernels/chunked/log_linear_attention.h"

#include <c10/util/Exception.h>

#include "hopmix/kernels/chunked/fenwick.h"
#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

void check_levels(const Call& c, int64_t longest) {
  const c10::SymInt given = c.arguments().sym_size("L");
  const int64_t needed = kernels::fenwick_levels(longest);
  TORCH_CHECK_VALUE(given >= needed, c.arguments().op(), ": level_scales has L = ", given,
                    " levels, but must have at least L = ", needed, " for ", longest, " tokens");
}

template <typename T>
kernels::LogLinearInputs<T> inputs(const Call& c) {
  return {{c.in<T>("q"), c.in<T>("k"), c.in<T>("v"), c.in<T>("log_decay"), /*channels=*/false,
           c.in<T>("beta"), /*initial_state=*/nullptr, c.size("H"), c.size("G"), c.size("DK"),
           c.size("DV"), c.scale(), c.sequences()},
          c.in<T>("level_scales"),
          c.size("L")};
}

Description describe(const char* name, std::vector<Argument> gates) {
  for (Argument argument : {tensor("Tensor level_scales", {"B", "T", "H", "L"}),
                            option("float? scale=None"), sequences()}) {
    gates.push_back(std::move(argument));
  }
  return {
      .name = name,
      .arguments = queries_keys_values(std::move(gates)),
      .outputs = {tensor("Tensor y", {"B", "T", "H", "DV"})},
      .check =
          [](Call& c) {
            // Of packed sequences only what cu_seqlens holds says how long they are.
            const auto time = c.arguments().sym_size("T").maybe_as_int();
            if (!c.is_packed() && time) check_levels(c, *time);
          },
      .forward =
          [](const Call& c) {
            check_levels(c, c.sequences().longest());
            c.with_type(
                [&]<typename T>() { kernels::log_linear_attention(inputs<T>(c), c.out<T>("y")); });
          },
      .backward =
          [](const Call& c) {
            check_levels(c, c.sequences().longest());
            c.with_type([&]<typename T>() {
              kernels::log_linear_attention_backward(
                  inputs<T>(c), c.in<T>("grad_y"),
                  {{c.grad<T>("q"), c.grad<T>("k"), c.grad<T>("v"), c.grad<T>("log_decay"),
                    c.grad<T>("beta")},
                   c.grad<T>("level_scales")});
            });
          },
  };
}

const auto decay = tensor("Tensor log_decay", {"B", "T", "H"});
const auto share = tensor("Tensor beta", {"B", "T", "H"});

const Operator attention_op(describe("log_linear_attention", {decay}));
const Operator delta_rule_op(describe("log_linear_delta_rule", {decay, share}));

}  // namespace

Tensor log_linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                            const Tensor& log_decay, const Tensor& level_scales,
                            std::optional<double> scale, const std::optional<Tensor>& cu_seqlens) {
  return attention_op.call<Tensor>(q, k, v, log_decay, level_scales, scale, cu_seqlens);
}

Tensor log_linear_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& log_decay, const Tensor& beta,
                             const Tensor& level_scales, std::optional<double> scale,
                             const std::optional<Tensor>& cu_seqlens) {
  return delta_rule_op.call<Tensor>(q, k, v, log_decay, beta, level_scales, scale, cu_seqlens);
}

}  // namespace hopmix::ops
