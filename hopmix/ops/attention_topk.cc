// attention_topk: checks, CPU and meta kernels, autograd. The selection has no gradient, so the
// backward is that of attention.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <limits>

#include "hopmix/kernels/dense/attention.h"
#include "hopmix/ops/checks.h"
#include "hopmix/ops/engines.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/optional_tensors.h"
#include "hopmix/ops/tensors.h"

namespace hopmix::ops {
namespace {

using Scale = std::optional<double>;
using Needs = std::array<bool, 3>;
using Outputs = std::tuple<Tensor, Tensor>;               // o, indices
using Kept = std::tuple<Tensor, Tensor, Tensor, Tensor>;  // and mix (o before it was rounded), lse

Arguments check(const std::string& op, const Tensors<3>& in, Maybe cu) {
  const auto& [q, k, v] = in;
  Arguments args(op);
  args.tensor("q", q, {"B", "T", "H", "DK"});
  args.tensor("k", k, {"B", "T", "G", "DK"});
  args.tensor("v", v, {"B", "T", "G", "DV"});
  args.grouped_heads();
  args.cu_seqlens(cu);
  return args;
}

Arguments check(const std::string& op, const Tensors<3>& in, int64_t kappa, int64_t block,
                Maybe cu) {
  Arguments args = check(op, in, cu);
  for (const auto& [name, value] : {std::pair{"kappa", kappa}, std::pair{"block", block}}) {
    TORCH_CHECK_VALUE(value >= 1, op, ": ", name, " is ", value, ", but must be at least 1");
  }
  return args;
}

Outputs new_outputs(const Arguments& args, const Tensor& q, int64_t kappa) {
  return {args.empty({"B", "T", "H", "DV"}),
          at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2), kappa},
                           q.options().dtype(at::kInt))};
}

// Without rounding mix is o, and is not kept twice.
Kept new_kept(const Arguments& args, const Tensor& q, int64_t kappa) {
  auto [o, indices] = new_outputs(args, q, kappa);
  const bool rounds = args.state_dtype() != args.dtype();
  return {
      o, indices,
      rounds ? args.empty({"B", "T", "H", "DV"}, args.state_dtype()) : at::empty({0}, q.options()),
      args.empty({"B", "T", "H"}, args.state_dtype())};
}

template <typename T>
kernels::AttentionInputs<T> bind(const Arguments& args, const Tensors<3>& in, Scale scale,
                                 const kernels::Sequences& sequences) {
  return {read<T>(in[0]),  read<T>(in[1]),  read<T>(in[2]),    args.size("H"), args.size("G"),
          args.size("DK"), args.size("DV"), args.scale(scale), sequences};
}

/// mix and lse may be undefined.
void run(const Arguments& args, const Tensors<3>& in, kernels::AttentionSelection selection,
         Scale scale, Maybe cu, const Kept& out) {
  const auto& [o, indices, mix, lse] = out;
  args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  TORCH_CHECK_VALUE(sequences.time <= std::numeric_limits<int32_t>::max(), args.op(), ": T is ",
                    sequences.time, ", but must be less than 2^31, for indices are int32");
  if (indices.numel() == 0) return;
  const Tensors<3> flat = contiguous(in);
  selection.indices = write<int32_t>(indices);
  ensure_gemm_engine();
  with_storage_type(args.dtype(), [&]<typename T>() {
    using A = kernels::Accumulator<T>;
    const bool keeps_mix = mix.defined() && mix.numel() > 0;
    kernels::attention<T>(bind<T>(args, flat, scale, sequences), write<T>(o),
                          {write_if<A>(keeps_mix, mix), write_if<A>(lse.defined(), lse)},
                          selection);
  });
}

Outputs forward_meta(const Tensor& q, const Tensor& k, const Tensor& v, int64_t kappa, Scale, bool,
                     Maybe cu, int64_t block) {
  return new_outputs(check("attention_topk", {q, k, v}, kappa, block, cu), q, kappa);
}

Kept kept_meta(const Tensor& q, const Tensor& k, const Tensor& v, int64_t kappa, Scale, bool,
               Maybe cu, int64_t block) {
  return new_kept(check("attention_topk", {q, k, v}, kappa, block, cu), q, kappa);
}

Outputs forward_cpu(const Tensor& q, const Tensor& k, const Tensor& v, int64_t kappa, Scale scale,
                    bool include_self, Maybe cu, int64_t block) {
  const Arguments args = check("attention_topk", {q, k, v}, kappa, block, cu);
  const auto [o, indices] = new_outputs(args, q, kappa);
  run(args, {q, k, v}, {kappa, block, include_self, nullptr}, scale, cu, {o, indices, {}, {}});
  return {o, indices};
}

Kept kept_cpu(const Tensor& q, const Tensor& k, const Tensor& v, int64_t kappa, Scale scale,
              bool include_self, Maybe cu, int64_t block) {
  const Arguments args = check("attention_topk", {q, k, v}, kappa, block, cu);
  const Kept out = new_kept(args, q, kappa);
  run(args, {q, k, v}, {kappa, block, include_self, nullptr}, scale, cu, out);
  return out;
}

Arguments check_backward(const Tensor& grad_o, const Tensor& mix, const Tensor& lse,
                         const Tensors<3>& in, Maybe cu) {
  Arguments args = check("attention_topk_backward", in, cu);
  args.tensor("grad_o", grad_o, {"B", "T", "H", "DV"});
  args.state("mix", mix, {"B", "T", "H", "DV"});
  args.state("lse", lse, {"B", "T", "H"});
  return args;
}

std::vector<Tensor> backward_meta(const Tensor& grad_o, const Tensor& mix, const Tensor& lse,
                                  const Tensor& q, const Tensor& k, const Tensor& v, Scale,
                                  Maybe cu, Needs needs) {
  check_backward(grad_o, mix, lse, {q, k, v}, cu);
  return gradients({q, k, v}, needs);
}

std::vector<Tensor> backward_cpu(const Tensor& grad_o, const Tensor& mix, const Tensor& lse,
                                 const Tensor& q, const Tensor& k, const Tensor& v, Scale scale,
                                 Maybe cu, Needs needs) {
  const Arguments args = check_backward(grad_o, mix, lse, {q, k, v}, cu);
  args.scale(scale);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  const std::vector<Tensor> out = gradients({q, k, v}, needs);
  if (grad_o.numel() == 0) {
    for (const Tensor& t : out) t.zero_();
    return out;
  }
  const Tensors<3> flat = contiguous(Tensors<3>{q, k, v});
  const Tensors<3> saved = contiguous(Tensors<3>{grad_o, mix, lse});
  ensure_gemm_engine();
  with_storage_type(args.dtype(), [&]<typename T>() {
    using A = kernels::Accumulator<T>;
    const auto to = [&](size_t i) { return write_if<T>(needs[i], out[i]); };
    kernels::attention_backward<T>(bind<T>(args, flat, scale, sequences), read<T>(saved[0]),
                                   {read<A>(saved[1]), read<A>(saved[2])}, {to(0), to(1), to(2)});
  });
  return out;
}

class Differentiable : public torch::autograd::Function<Differentiable> {
 public:
  using Context = torch::autograd::AutogradContext;

  static std::vector<Tensor> forward(Context* ctx, const Tensor& q, const Tensor& k,
                                     const Tensor& v, int64_t kappa, Scale scale, bool include_self,
                                     Maybe cu, int64_t block) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [o, indices, mix, lse] = c10::Dispatcher::singleton()
                                            .findSchemaOrThrow("hopmix::_attention_topk", "")
                                            .typed<decltype(kept_cpu)>()
                                            .call(q, k, v, kappa, scale, include_self, cu, block);
    const bool rounds = mix.scalar_type() != o.scalar_type();
    ctx->mark_non_differentiable({indices});
    ctx->save_for_backward({rounds ? mix : o, lse, q, k, v, cu.value_or(Tensor())});
    ctx->saved_data["scale"] = scale;
    return {o, indices};
  }

  static std::vector<Tensor> backward(Context* ctx, const std::vector<Tensor>& grads) {
    const std::vector<Tensor> s = ctx->get_saved_variables();
    const Needs needs = {ctx->needs_input_grad(0), ctx->needs_input_grad(1),
                         ctx->needs_input_grad(2)};
    std::vector<Tensor> out =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("hopmix::attention_topk_backward", "")
            .typed<decltype(backward_cpu)>()
            .call(grads[0], s[0], s[1], s[2], s[3], s[4], ctx->saved_data["scale"].to<Scale>(),
                  defined_or_none(s[5]), needs);
    for (size_t i = 0; i < needs.size(); ++i) {
      if (!needs[i]) out[i] = Tensor();
    }
    out.resize(8);  // nothing for the rest
    return out;
  }
};

Outputs forward_autograd(const Tensor& q, const Tensor& k, const Tensor& v, int64_t kappa,
                         Scale scale, bool include_self, Maybe cu, int64_t block) {
  // Without a backward nothing has to be kept for it.
  const bool any = q.requires_grad() || k.requires_grad() || v.requires_grad();
  if (!any || !at::GradMode::is_enabled()) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return attention_topk(q, k, v, kappa, scale, include_self, cu, block);
  }
  const std::vector<Tensor> out =
      Differentiable::apply(q, k, v, kappa, scale, include_self, cu, block);
  return {out[0], out[1]};
}

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  const std::string inputs = "Tensor q, Tensor k, Tensor v, ";
  for (const std::string& schema :
       {"attention_topk(" + inputs +
            "int kappa, float? scale=None, bool include_self=True, Tensor? cu_seqlens=None,"
            " int block=1) -> (Tensor o, Tensor indices)",
        "_attention_topk(" + inputs +
            "int kappa, float? scale, bool include_self, Tensor? cu_seqlens, int block)"
            " -> (Tensor o, Tensor indices, Tensor mix, Tensor lse)",
        "attention_topk_backward(Tensor grad_o, Tensor mix, Tensor lse, " + inputs +
            "float? scale, Tensor? cu_seqlens, bool[3] needs) -> Tensor[]"}) {
    m.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
  }
}

TORCH_LIBRARY_IMPL(hopmix, CPU, m) {
  m.impl("attention_topk", &forward_cpu);
  m.impl("_attention_topk", &kept_cpu);
  m.impl("attention_topk_backward", &backward_cpu);
}

TORCH_LIBRARY_IMPL(hopmix, Meta, m) {
  m.impl("attention_topk", &forward_meta);
  m.impl("_attention_topk", &kept_meta);
  m.impl("attention_topk_backward", &backward_meta);
}

TORCH_LIBRARY_IMPL(hopmix, Autograd, m) {
  m.impl("attention_topk", &forward_autograd);
  for (const char* inner : {"_attention_topk", "attention_topk_backward"}) {
    m.impl(inner, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace

Outputs attention_topk(const Tensor& q, const Tensor& k, const Tensor& v, int64_t kappa,
                       std::optional<double> scale, bool include_self,
                       const std::optional<Tensor>& cu_seqlens, int64_t block) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("hopmix::attention_topk", "")
      .typed<decltype(forward_cpu)>()
      .call(q, k, v, kappa, scale, include_self, cu_seqlens, block);
}

}  // namespace hopmix::ops
