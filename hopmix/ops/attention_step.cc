// The mathematics is in kernels/decode/attention_step.h.
#include "hopmix/kernels/decode/attention_step.h"

#include <c10/util/Exception.h>

#include "hopmix/ops/call.h"

namespace hopmix::ops {
namespace {

void check(Call& c) {
  TORCH_CHECK_VALUE(c.has("own_k") == c.has("own_v"), c.arguments().op(),
                    ": own_k and own_v must be given together");
}

// The rows of each sequence side by side; sequences may be apart, as in a part of the slots.
Tensor with_rows_together(const Tensor& x) {
  return x.size(0) == 0 || x.select(0, 0).is_contiguous() ? x : x.contiguous();
}

void check_slots(const Call& c) {
  const auto* const s = c.in<int32_t>("slots");
  TORCH_CHECK_VALUE(s == nullptr || c.size("S") > 0 || c.size("R") == 0, c.arguments().op(),
                    ": slots has ", c.size("R"), " entries, but k has no slots to read (S = 0)");
  for (int64_t r = 0; s != nullptr && r < c.size("R"); ++r) {
    TORCH_CHECK_VALUE(0 <= s[r] && s[r] < c.size("S"), c.arguments().op(), ": slots[", r, "] is ",
                      s[r], ", but must be from 0 to ", c.size("S") - 1);
  }
}

void forward(const Call& c) {
  check_slots(c);
  const Tensor keys = with_rows_together(c.tensor("k")), values = with_rows_together(c.tensor("v"));
  c.with_type([&]<typename T>() {
    kernels::attention_step<T>({.q = c.in<T>("q"),
                                .k = read<T>(keys),
                                .v = read<T>(values),
                                .slots = c.in<int32_t>("slots"),
                                .own_k = c.in<T>("own_k"),
                                .own_v = c.in<T>("own_v"),
                                .batch = c.size("B"),
                                .reads = c.has("slots") ? c.size("R") : c.size("S"),
                                .heads = c.size("H"),
                                .kv_heads = c.size("G"),
                                .key_width = c.size("DK"),
                                .value_width = c.size("DV"),
                                .k_stride = keys.stride(0),
                                .v_stride = values.stride(0),
                                .scale = c.scale()},
                               c.out<T>("y"));
  });
}

const Operator op({
    .name = "attention_step",
    .arguments = {tensor("Tensor q", {"B", "H", "DK"}),
                  strided(tensor("Tensor k", {"B", "S", "G", "DK"})),
                  strided(tensor("Tensor v", {"B", "S", "G", "DV"})),
                  positions("Tensor? slots=None", {"R"}),
                  tensor("Tensor? own_k=None", {"B", "G", "DK"}),
                  tensor("Tensor? own_v=None", {"B", "G", "DV"}), option("float? scale=None")},
    .outputs = {tensor("Tensor y", {"B", "H", "DV"})},
    .check = check,
    .forward = forward,
});

}  // namespace

Tensor attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                      const std::optional<Tensor>& slots, const std::optional<Tensor>& own_k,
                      const std::optional<Tensor>& own_v, std::optional<double> scale) {
  return op.call<Tensor>(q, k, v, slots, own_k, own_v, scale);
}

}  // namespace hopmix::ops
