// attention_topk: checks, CPU and meta kernels, autograd. The forward pass is attention_blocks.h;
// the backward is that of dense_blocks.h without a recurrence (g = 0, w = v), for the selection has
// none.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <limits>

#include "hopmix/ops/attention_blocks.h"
#include "hopmix/ops/block_types.h"
#include "hopmix/ops/checks.h"
#include "hopmix/ops/dense_heads.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/optional_tensors.h"

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

struct Selection {
  int64_t kappa, block;
  bool self;
};

/// mix and lse may be undefined.
void run(const Arguments& args, const Tensors<3>& in, const Selection& selection, Scale factor,
         Maybe cu, const Kept& out) {
  const auto& [o, indices, mix, lse] = out;
  const Tensors<3> flat = contiguous(in);
  const double scale = args.scale(factor);
  const kernels::Sequences sequences = bind_sequences(args, cu);
  TORCH_CHECK_VALUE(sequences.time <= std::numeric_limits<int32_t>::max(), args.op(), ": T is ",
                    sequences.time, ", but must be less than 2^31, for indices are int32");
  if (indices.numel() == 0) return;
  const int64_t heads = args.size("H"), kv_heads = args.size("G"), group = heads / kv_heads;
  const int64_t keys = args.size("DK"), values = args.size("DV");
  with_block_types(args.dtype(), [&]<typename T, typename O>() {
    using A = kernels::Accumulator<T>;
    using Blocks = AttentionBlocks<T, O>;
    const auto view = [&](const Tensor& x, const kernels::Sequence& s, int64_t of, int64_t which,
                          int64_t width) {
      const int64_t first = kernels::head_offset(sequences.first_token(s), of, which, width);
      return kernels::MatrixView<T>{read<T>(x) + first, s.length, width, of * width};
    };
    const auto store = [&](const kernels::Sequence& s, int64_t head, int64_t first,
                           const typename Blocks::Block& block, kernels::TopScores<A>& best) {
      const int64_t n = std::min(Blocks::kBlock, s.length - first);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t token = sequences.first_token(s) + first + i;
        const int64_t row = kernels::head_offset(token, heads, head, values);
        const A* from = block.mix + i * block.stride;
        T* to = write<T>(o) + row;
#pragma omp simd
        for (int64_t c = 0; c < values; ++c) to[c] = static_cast<T>(from[c]);
        if (mix.defined() && mix.numel() > 0) std::copy_n(from, values, write<A>(mix) + row);
        const int64_t scalar = kernels::head_offset(token, heads, head, 1);
        if (lse.defined()) write<A>(lse)[scalar] = block.lse[i];
        best.take(
            i, selection.kappa,
            write<int32_t>(indices) + kernels::head_offset(token, heads, head, selection.kappa));
      }
    };
    const int64_t most = group * (sequences.longest() + Blocks::kBlock - 1) / Blocks::kBlock;
    kernels::parallel_teams(
        sequences.count() * kv_heads, sequences.tokens() * heads * keys, most,
        [&](int64_t task, int64_t) {
          const kernels::Sequence& s = sequences.list[task / kv_heads];
          return Blocks(view(flat[1], s, kv_heads, task % kv_heads, keys),
                        view(flat[2], s, kv_heads, task % kv_heads, values), scale);
        },
        [&](int64_t task, const Blocks& blocks, const kernels::Member& member) {
          const kernels::Sequence& s = sequences.list[task / kv_heads];
          if (s.length == 0) return;
          const int64_t candidates = (s.length + selection.block - 1) / selection.block;
          kernels::TopScores<A> best(Blocks::kBlock,
                                     {std::min(selection.kappa, candidates), selection.block});
          typename Blocks::Block block(blocks);
          const int64_t tasks = (s.length + Blocks::kBlock - 1) / Blocks::kBlock * group;
          for (int64_t t = member.rank(); t < tasks; t += member.size()) {
            const int64_t head = task % kv_heads * group + t % group;
            const int64_t first = t / group * Blocks::kBlock;
            blocks.forward(view(flat[0], s, heads, head, keys), first, selection.self, block, best);
            store(s, head, first, block, best);
          }
          kernels::release_gemm();
        });
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
  run(args, {q, k, v}, {kappa, block, include_self}, scale, cu, {o, indices, {}, {}});
  return {o, indices};
}

Kept kept_cpu(const Tensor& q, const Tensor& k, const Tensor& v, int64_t kappa, Scale scale,
              bool include_self, Maybe cu, int64_t block) {
  const Arguments args = check("attention_topk", {q, k, v}, kappa, block, cu);
  const Kept out = new_kept(args, q, kappa);
  run(args, {q, k, v}, {kappa, block, include_self}, scale, cu, out);
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
  const Tensors<4> saved = contiguous(Tensors<4>{grad_o, mix, lse, v});
  const DenseCall call(args, q, k, /*reads_self=*/true, scale, cu);
  const std::vector<Tensor> out = gradients({q, k, v}, needs);
  if (grad_o.numel() == 0) {
    for (const Tensor& t : out) t.zero_();
    return out;
  }
  with_block_types(args.dtype(), [&]<typename T, typename O>() {
    using A = kernels::Accumulator<T>;
    const auto prepare = [&](const HeadWork<A>& work) {
      for (int64_t i = 0; i < work.length; ++i) {
        const int64_t row = work.at(i, call.heads, work.head, call.values), at = i * work.values;
        const T* grad = read<T>(saved[0]) + row;
        const T* value = read<T>(saved[3]) + work.at(i, call.kv_heads, work.kv_head, call.values);
        std::copy_n(read<A>(saved[1]) + row, call.values, work.mix + at);
        work.lse[i] = read<A>(saved[2])[work.at(i, call.heads, work.head, 1)];
#pragma omp simd
        for (int64_t x = 0; x < call.values; ++x) {
          work.w[at + x] = static_cast<A>(value[x]);
          work.h[at + x] = static_cast<A>(grad[x]);
        }
      }
    };
    const auto finish = [&](const HeadWork<A>& work) {
      for (int64_t x = 0; x < work.length * work.values; ++x) work.dv[x] += work.l[x];
    };
    dense_backward<T, O>(call, if_wanted(needs[0], out[0]), if_wanted(needs[1], out[1]),
                                   if_wanted(needs[2], out[2]), prepare, finish);
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
