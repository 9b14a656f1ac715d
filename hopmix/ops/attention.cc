// attention, and attention_topk, which also gives the best positions. A selection has no gradient,
// so both have the backward of attention. The mathematics is in kernels/dense/README.md.
#include "hopmix/kernels/dense/attention.h"

#include <c10/util/Exception.h>

#include <limits>

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

template <typename T>
kernels::AttentionInputs<T> inputs(const Call& c) {
  return {c.in<T>("q"), c.in<T>("k"), c.in<T>("v"), c.size("H"),  c.size("G"),
          c.size("DK"), c.size("DV"), c.scale(),    c.sequences()};
}

template <typename A>
kernels::AttentionKept<A> kept_of(const Call& c) {
  return {c.out<A>("mix"), c.out<A>("lse")};
}

void backward(const Call& c) {
  c.with_type([&]<typename T>() {
    using A = kernels::Accumulator<T>;
    kernels::attention_backward<T>(inputs<T>(c), c.in<T>("grad_o"),
                                   {c.in<A>("mix"), c.in<A>("lse")},
                                   {c.grad<T>("q"), c.grad<T>("k"), c.grad<T>("v")});
  });
}

const std::vector<Kept> kKept = {unrounded("mix", "o", {"B", "T", "H", "DV"}),
                                 kept_state("lse", {"B", "T", "H"})};

const Operator op({
    .name = "attention",
    .arguments = queries_keys_values({option("float? scale=None"), sequences()}),
    .outputs = {tensor("Tensor o", {"B", "T", "H", "DV"})},
    .kept = kKept,
    .forward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            kernels::attention<T>(inputs<T>(c), c.out<T>("o"), kept_of<kernels::Accumulator<T>>(c));
          });
        },
    .backward = backward,
});

const Operator topk({
    .name = "attention_topk",
    .arguments = queries_keys_values({option("int kappa"), option("float? scale=None"),
                                      option("bool include_self=True"), sequences(),
                                      option("int block=1")}),
    .outputs = {tensor("Tensor o", {"B", "T", "H", "DV"}),
                positions("Tensor indices", {"B", "T", "H", "kappa"})},
    .kept = kKept,
    .check =
        [](Call& c) {
          c.at_least("kappa", 1);
          c.at_least("block", 1);
          c.arguments().define("kappa", c.integer("kappa"));
        },
    .forward =
        [](const Call& c) {
          TORCH_CHECK_VALUE(c.size("T") <= std::numeric_limits<int32_t>::max(),
                            "attention_topk: T is ", c.size("T"),
                            ", but must be less than 2^31, for indices are int32");
          c.with_type([&]<typename T>() {
            kernels::attention<T>(inputs<T>(c), c.out<T>("o"), kept_of<kernels::Accumulator<T>>(c),
                                  {c.integer("kappa"), c.integer("block"), c.flag("include_self"),
                                   c.out<int32_t>("indices")});
          });
        },
    .backward = backward,
});

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, std::optional<double> scale,
                 const std::optional<Tensor>& cu_seqlens) {
  return op.call<Tensor>(q, k, v, scale, cu_seqlens);
}

std::tuple<Tensor, Tensor> attention_topk(const Tensor& q, const Tensor& k, const Tensor& v,
                                          int64_t kappa, std::optional<double> scale,
                                          bool include_self,
                                          const std::optional<Tensor>& cu_seqlens, int64_t block) {
  return topk.call<std::tuple<Tensor, Tensor>>(q, k, v, kappa, scale, include_self, cu_seqlens,
                                               block);
}

}  // namespace hopmix::ops
