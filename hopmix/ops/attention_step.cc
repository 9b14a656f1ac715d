// attention_step: softmax attention of one token to what a decoder holds. The mathematics is in
// kernels/decode/attention_step.h.
#include "hopmix/kernels/decode/attention_step.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "hopmix/ops/checks.h"
#include "hopmix/ops/decoding.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/optional_tensors.h"
#include "hopmix/ops/tensors.h"

namespace hopmix::ops {
namespace {

using Scale = std::optional<double>;

constexpr char kName[] = "attention_step";

Arguments check(const Tensor& q, const Tensor& k, const Tensor& v, Maybe slots, Maybe own_k,
                Maybe own_v) {
  Arguments args(kName);
  args.tensor("q", q, {"B", "H", "DK"});
  args.tensor("k", k, {"B", "S", "G", "DK"});
  args.tensor("v", v, {"B", "S", "G", "DV"});
  args.grouped_heads();
  if (slots) args.positions("slots", *slots, {"R"});
  TORCH_CHECK_VALUE(own_k.has_value() == own_v.has_value(), kName,
                    ": own_k and own_v must be given together");
  if (own_k) args.tensor("own_k", *own_k, {"B", "G", "DK"});
  if (own_v) args.tensor("own_v", *own_v, {"B", "G", "DV"});
  return args;
}

Tensor step_meta(const Tensor& q, const Tensor& k, const Tensor& v, Maybe slots, Maybe own_k,
                 Maybe own_v, Scale) {
  return check(q, k, v, slots, own_k, own_v).empty({"B", "H", "DV"});
}

// The rows of each sequence side by side; sequences may be apart, as in a part of the slots.
Tensor with_rows_together(const Tensor& x) {
  return x.size(0) == 0 || x.select(0, 0).is_contiguous() ? x : x.contiguous();
}

void check_slots(const Tensor& slots, int64_t count) {
  const auto* const s = slots.const_data_ptr<int32_t>();
  for (int64_t r = 0; r < slots.numel(); ++r) {
    TORCH_CHECK_VALUE(0 <= s[r] && s[r] < count, kName, ": slots[", r, "] is ", s[r],
                      ", but must be from 0 to ", count - 1);
  }
}

Tensor step_cpu(const Tensor& q, const Tensor& k, const Tensor& v, Maybe slots, Maybe own_k,
                Maybe own_v, Scale scale) {
  const Arguments args = check(q, k, v, slots, own_k, own_v);
  const Maybe list = contiguous_if(slots), own_key = contiguous_if(own_k),
              own_value = contiguous_if(own_v);
  if (list) check_slots(*list, args.size("S"));
  const Tensor y = args.empty({"B", "H", "DV"});
  const Tensor query = q.contiguous(), keys = with_rows_together(k), values = with_rows_together(v);
  with_storage_type(args.dtype(), [&]<typename T>() {
    kernels::attention_step<T>({.q = read<T>(query),
                                .k = read<T>(keys),
                                .v = read<T>(values),
                                .slots = read_if<int32_t>(list),
                                .own_k = read_if<T>(own_key),
                                .own_v = read_if<T>(own_value),
                                .batch = args.size("B"),
                                .reads = list ? args.size("R") : args.size("S"),
                                .heads = args.size("H"),
                                .kv_heads = args.size("G"),
                                .key_width = args.size("DK"),
                                .value_width = args.size("DV"),
                                .k_stride = keys.stride(0),
                                .v_stride = values.stride(0),
                                .scale = args.scale(scale)},
                               write<T>(y));
  });
  return y;
}

Tensor step_autograd(const Tensor& q, const Tensor& k, const Tensor& v, Maybe slots, Maybe own_k,
                     Maybe own_v, Scale scale) {
  refuse_gradients(kName, {{"q", &q},
                           {"k", &k},
                           {"v", &v},
                           {"own_k", address_of(own_k)},
                           {"own_v", address_of(own_v)}});
  const at::AutoDispatchBelowADInplaceOrView below;
  return attention_step(q, k, v, slots, own_k, own_v, scale);
}

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  m.def(
      "attention_step(Tensor q, Tensor k, Tensor v, Tensor? slots=None, Tensor? own_k=None, "
      "Tensor? own_v=None, float? scale=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(hopmix, CPU, m) { m.impl(kName, &step_cpu); }
TORCH_LIBRARY_IMPL(hopmix, Meta, m) { m.impl(kName, &step_meta); }
TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { m.impl(kName, &step_autograd); }

}  // namespace

Tensor attention_step(const Tensor& q, const Tensor& k, const Tensor& v, Maybe slots, Maybe own_k,
                      Maybe own_v, Scale scale) {
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("hopmix::attention_step", "")
                                 .typed<decltype(step_cpu)>();
  return handle.call(q, k, v, slots, own_k, own_v, scale);
}

}  // namespace hopmix::ops
