// The mathematics is in kernels/dense/block_chacal.h.
#include "hopmix/kernels/dense/block_chacal.h"

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

template <typename T>
kernels::BlockChacalInputs<T> inputs(const Call& c) {
  return {c.in<T>("q"), c.in<T>("k"),      c.in<T>("v"),
          c.size("H"),  c.size("G"),       c.size("DK"),
          c.size("DV"), c.number("gamma"), c.value("block").toOptional<int64_t>().value_or(0),
          c.scale(),    c.sequences()};
}

const Operator op({
    .name = "block_chacal",
    .arguments = queries_keys_values({option("float gamma"), option("int? block=None"),
                                      option("float? scale=None"), sequences()}),
    .outputs = {tensor("Tensor y", {"B", "T", "H", "DV"})},
    // As of chacal.
    .kept = {kept_state("mix", {"B", "T", "H", "DV"}), kept_state("lse", {"B", "T", "H"})},
    .kept_always = true,
    .check =
        [](Call& c) {
          c.arguments().gamma(c.number("gamma"));
          c.at_least("block", 1);
        },
    .forward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            using A = kernels::Accumulator<T>;
            kernels::block_chacal<T>(inputs<T>(c), c.out<T>("y"),
                                     {c.out<A>("mix"), c.out<A>("lse")});
          });
        },
    .backward =
        [](const Call& c) {
          c.with_type([&]<typename T>() {
            using A = kernels::Accumulator<T>;
            kernels::block_chacal_backward<T>(inputs<T>(c), c.in<T>("grad_y"),
                                              {c.in<A>("mix"), c.in<A>("lse")},
                                              {c.grad<T>("q"), c.grad<T>("k"), c.grad<T>("v")});
          });
        },
});

}  // namespace

Tensor block_chacal(const Tensor& q, const Tensor& k, const Tensor& v, double gamma,
                    std::optional<int64_t> block, std::optional<double> scale,
                    const std::optional<Tensor>& cu_seqlens) {
  return op.call<Tensor>(q, k, v, gamma, block, scale, cu_seqlens);
}

}  // namespace hopmix::ops
