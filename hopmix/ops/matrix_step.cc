// matrix_step_: one token of a recurrence with a matrix state, which is updated in place. The
// mathematics is in kernels/decode/matrix_step.h.
#include "hopmix/kernels/decode/matrix_step.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "hopmix/ops/checks.h"
#include "hopmix/ops/decoding.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/optional_tensors.h"
#include "hopmix/ops/overloads.h"
#include "hopmix/ops/tensors.h"

namespace hopmix::ops {
namespace {

using Scale = std::optional<double>;

constexpr char kName[] = "matrix_step_";

Arguments check(const Tensor& q, const Tensor& k, const Tensor& v, Maybe log_decay, Maybe beta,
                const Tensor& state) {
  Arguments args(kName);
  args.tensor("q", q, {"B", "H", "DK"});
  args.tensor("k", k, {"B", "G", "DK"});
  args.tensor("v", v, {"B", "G", "DV"});
  args.grouped_heads();
  if (log_decay && log_decay->dim() == 3) {
    args.tensor("log_decay", *log_decay, {"B", "H", "DK"});
  } else if (log_decay) {
    args.tensor("log_decay", *log_decay, {"B", "H"});
  }
  if (beta) args.tensor("beta", *beta, {"B", "H"});
  args.state("state", state, {"B", "H", "DK", "DV"});
  TORCH_CHECK_VALUE(state.is_contiguous(), kName, ": state has strides ", state.strides(),
                    ", but must be contiguous, as it is updated in place");
  return args;
}

Tensor step_meta(const Tensor& q, const Tensor& k, const Tensor& v, Maybe log_decay, Maybe beta,
                 const Tensor& state, Scale) {
  return check(q, k, v, log_decay, beta, state).empty({"B", "H", "DV"});
}

Tensor step_cpu(const Tensor& q, const Tensor& k, const Tensor& v, Maybe log_decay, Maybe beta,
                const Tensor& state, Scale scale) {
  const Arguments args = check(q, k, v, log_decay, beta, state);
  const Tensor o = args.empty({"B", "H", "DV"});
  if (args.size("DV") == 0) return o;
  const Tensors<3> in = contiguous(Tensors<3>{q, k, v});
  const Maybe decay = contiguous_if(log_decay), share = contiguous_if(beta);
  const auto sequences = kernels::Sequences::batched(args.size("B"), 1);
  with_storage_type(args.dtype(), [&]<typename T>() {
    auto* const s = write<kernels::Accumulator<T>>(state);
    kernels::matrix_step<T>(
        {read<T>(in[0]), read<T>(in[1]), read<T>(in[2]), decay ? read<T>(*decay) : nullptr,
         decay && decay->dim() == 3, share ? read<T>(*share) : nullptr, s, args.size("H"),
         args.size("G"), args.size("DK"), args.size("DV"), args.scale(scale), sequences},
        write<T>(o), s);
  });
  return o;
}

// What is overwritten has no derivative.
Tensor step_autograd(const Tensor& q, const Tensor& k, const Tensor& v, Maybe log_decay, Maybe beta,
                     const Tensor& state, Scale scale) {
  refuse_gradients(kName, {{"q", &q},
                           {"k", &k},
                           {"v", &v},
                           {"log_decay", address_of(log_decay)},
                           {"beta", address_of(beta)},
                           {"state", &state}});
  const at::AutoDispatchBelowAutograd below;
  return matrix_step_(q, k, v, log_decay, beta, state, scale);
}

// Autograd compares versions, also where it is off itself, as in inference mode.
Tensor step_versioned(const Tensor& q, const Tensor& k, const Tensor& v, Maybe log_decay,
                      Maybe beta, const Tensor& state, Scale scale) {
  const Tensor o = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return matrix_step_(q, k, v, log_decay, beta, state, scale);
  }();
  state.unsafeGetTensorImpl()->bump_version();
  return o;
}

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  m.def(
      "matrix_step_(Tensor q, Tensor k, Tensor v, Tensor? log_decay, Tensor? beta, "
      "Tensor(a!) state, float? scale=None) -> Tensor",
      {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(hopmix, CPU, m) { m.impl(kName, &step_cpu); }
TORCH_LIBRARY_IMPL(hopmix, Meta, m) { m.impl(kName, &step_meta); }
TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { m.impl(kName, &step_autograd); }
TORCH_LIBRARY_IMPL(hopmix, ADInplaceOrView, m) { m.impl(kName, &step_versioned); }

}  // namespace

Tensor matrix_step_(const Tensor& q, const Tensor& k, const Tensor& v, Maybe log_decay, Maybe beta,
                    const Tensor& state, Scale scale) {
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("hopmix::matrix_step_", "")
                                 .typed<decltype(step_cpu)>();
  return handle.call(q, k, v, log_decay, beta, state, scale);
}

}  // namespace hopmix::ops
