// block_chacal: ChaCAL inside blocks of about T^(1/3) tokens, one summary a block across them.
//
// Block C has the summary key kbar_C = mean of its k and the summary value wbar_C = mean of its W.
// With a_BC = softmax over C < B of scale q_first(B) . kbar_C, block B reads s_B = sum_C a_BC
// kbar_C and r_B = sum_C a_BC wbar_C as one more key and value:
//
//   W_i = v_i + gamma mix_i,  mix_i = sum_j A_ij W_j + A_is r_B,  y_i = (1 - gamma) mix_i
//
// with A_i the softmax over scale q_i . k_j of the block's j <= i and scale q_i . s_B. Inside a
// block W = X + u r_B with X = (I - gamma A)^{-1} V and u = (I - gamma A)^{-1} gamma A_s, so that
//
//   wbar_B = mean X + (mean u) r_B:
//
// the summaries are a dense recurrence over T/b blocks with gate mean u, solved before any W. All
// of it is differentiable operators; the backward runs them once more.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <cmath>

#include "hopmix/ops/checks.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/saved_autograd.h"

namespace hopmix::ops {
namespace {

using Cu = const std::optional<Tensor>&;
using Block = std::optional<int64_t>;
using Scale = std::optional<double>;
using Needs = std::array<bool, 3>;

Arguments check(const std::string& op, const Tensors<3>& in, double gamma, Block block, Cu cu) {
  const auto& [q, k, v] = in;
  Arguments args(op);
  args.tensor("q", q, {"B", "T", "H", "DK"});
  args.tensor("k", k, {"B", "T", "G", "DK"});
  args.tensor("v", v, {"B", "T", "G", "DV"});
  args.grouped_heads();
  args.cu_seqlens(cu);
  args.gamma(gamma);
  TORCH_CHECK_VALUE(!block || *block >= 1, op, ": block is ", *block, ", but must be at least 1");
  return args;
}

int64_t cube_root_up(int64_t n) {
  int64_t b = 1;
  while (b * b * b < n) ++b;
  return b;
}

// [B,T,H,D] -> [B H, blocks, b, D], the last block filled with zeros.
Tensor into_blocks(const Tensor& x, int64_t heads, int64_t b) {
  const int64_t time = x.size(1), blocks = (time + b - 1) / b;
  return at::constant_pad_nd(x, {0, 0, 0, 0, 0, blocks * b - time})
      .repeat_interleave(heads / x.size(2), 2)
      .transpose(1, 2)
      .reshape({x.size(0) * heads, blocks, b, x.size(3)});
}

// A w for a lower triangular A, in which a w that is no number stays out of earlier rows: 0 times
// it would not be 0.
Tensor lower_product(const Tensor& a, const Tensor& w) {
  const auto [low, high] = at::aminmax(w.detach());  // NaN if any is
  if (std::isfinite(low.item<double>()) && std::isfinite(high.item<double>())) {
    return at::matmul(a, w);
  }
  const Tensor bad = at::logical_not(at::isfinite(w));
  const Tensor none = at::zeros_like(w).masked_fill(bad, std::numeric_limits<double>::quiet_NaN());
  return at::matmul(a, w.masked_fill(bad, 0)) + none.cumsum(2);
}

// One length of sequences, float32 or float64; made of differentiable operators.
Tensor mix_blocks(const Tensors<3>& in, double gamma, int64_t b, double scale) {
  const auto& [q_in, k_in, v_in] = in;
  const int64_t batch = q_in.size(0), time = q_in.size(1), heads = q_in.size(2);
  const Tensor q = into_blocks(q_in, heads, b), k = into_blocks(k_in, heads, b),
               v = into_blocks(v_in, heads, b);
  const int64_t blocks = q.size(1);
  const auto over_time = [&](const Tensor& t) { return t.unsqueeze(2); };  // one head

  const Tensor q_first = over_time(q.select(2, 0)), k_mean = over_time(k.mean(2));
  const Tensor s =
      sparse_attention(q_first, k_mean, k_mean, "dense", /*include_self=*/false, scale).squeeze(2);

  // The weights of block tokens, and of the summary: none for the first block.
  const Tensor hidden = at::ones({b, b}, q.options().dtype(at::kBool)).triu(1);
  const Tensor first = at::arange(blocks, q.options().dtype(at::kLong)).eq(0).view({blocks, 1, 1});
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const Tensor inside = (scale * at::matmul(q, k.transpose(2, 3))).masked_fill(hidden, kNone);
  const Tensor across = (scale * at::matmul(q, s.unsqueeze(3))).masked_fill(first, kNone);
  // Not at::softmax: the bits of its gradient depend on the number of threads.
  const Tensor logits = at::cat({inside, across}, 3);
  const Tensor exponentials = at::exp(logits - logits.detach().amax(3, /*keepdim=*/true));
  const Tensor weights = exponentials / exponentials.sum(3, /*keepdim=*/true);
  const Tensor a = weights.narrow(3, 0, b), a_s = weights.narrow(3, b, 1);

  const Tensor system = at::eye(b, q.options()) - gamma * a;
  const Tensor solved =
      at::linalg_solve_triangular(system, at::cat({v, gamma * a_s}, 3), /*upper=*/false);
  const int64_t width = v.size(3);
  const Tensor x = solved.narrow(3, 0, width), u = solved.narrow(3, width, 1);

  const Tensor gate = u.mean(2);  // [B H, blocks, 1]
  const Tensor w_mean = dense_recurrence(q_first, k_mean, over_time(x.mean(2)), gate,
                                         at::zeros_like(gate), at::ones_like(gate), scale);
  const Tensor r =
      sparse_attention(q_first, k_mean, w_mean, "dense", /*include_self=*/false, scale);  // [,,1,]
  const Tensor w = x + u * r;
  const Tensor mix = lower_product(a, w) + a_s * r;
  return ((1 - gamma) * mix)
      .reshape({batch, heads, blocks * b, width})
      .narrow(2, 0, time)
      .transpose(1, 2);
}

Tensor compute(const Arguments& args, const Tensors<3>& in, double gamma, Block block, Scale scale,
               Cu cu) {
  const double factor = args.scale(scale);
  Tensors<3> wide = in;
  for (Tensor& t : wide) t = t.to(args.state_dtype());
  const auto mix = [&](const Tensors<3>& part) {
    const int64_t length = part[0].size(1);
    const int64_t b = std::clamp<int64_t>(block.value_or(cube_root_up(length)), 1, length);
    return mix_blocks(part, gamma, b, factor);
  };
  if (!cu) return mix(wide).to(args.dtype());
  std::vector<Tensor> parts;
  for (const kernels::Sequence& s : bind_sequences(args, cu).list) {
    if (s.length == 0) continue;
    Tensors<3> part;
    for (size_t i = 0; i < 3; ++i) part[i] = wide[i].narrow(1, s.start, s.length);
    parts.push_back(mix(part));
  }
  return at::cat(parts, 1).to(args.dtype());
}

std::vector<Tensor> forward_meta(const Tensors<3>& in, double gamma, Block block, Scale, Cu cu) {
  return {check("block_chacal", in, gamma, block, cu).empty({"B", "T", "H", "DV"})};
}

std::vector<Tensor> forward_cpu(const Tensors<3>& in, double gamma, Block block, Scale scale,
                                Cu cu) {
  const Arguments args = check("block_chacal", in, gamma, block, cu);
  args.scale(scale);
  bind_sequences(args, cu);
  const Tensor y = args.empty({"B", "T", "H", "DV"});
  if (y.numel() > 0) y.copy_(compute(args, in, gamma, block, scale, cu));
  return {y};
}

Arguments check_backward(const Tensor& grad_y, at::TensorList kept, const Tensors<3>& in,
                         double gamma, Block block, Cu cu) {
  Arguments args = check("block_chacal_backward", in, gamma, block, cu);
  args.tensor("grad_y", grad_y, {"B", "T", "H", "DV"});
  args.kept(kept, 0);
  return args;
}

std::vector<Tensor> backward_meta(const Tensor& grad_y, at::TensorList kept, const Tensors<3>& in,
                                  double gamma, Block block, Scale, Cu cu, Needs needs) {
  check_backward(grad_y, kept, in, gamma, block, cu);
  return gradients(in, needs);
}

std::vector<Tensor> backward_cpu(const Tensor& grad_y, at::TensorList kept, const Tensors<3>& in,
                                 double gamma, Block block, Scale scale, Cu cu, Needs needs) {
  const Arguments args = check_backward(grad_y, kept, in, gamma, block, cu);
  const std::vector<Tensor> out = gradients(in, needs);
  if (grad_y.numel() == 0) {
    for (const Tensor& t : out) t.zero_();
    return out;
  }
  // This kernel runs below autograd; what it runs again is recorded.
  const c10::impl::LocalDispatchKeySet now = c10::impl::tls_local_dispatch_key_set();
  const c10::impl::ForceDispatchKeyGuard above(
      now.included_, now.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  const at::AutoGradMode record(true);
  Tensors<3> leaves;
  std::vector<Tensor> wanted;
  for (size_t i = 0; i < 3; ++i) {
    leaves[i] = in[i].detach().requires_grad_(needs[i]);
    if (needs[i]) wanted.push_back(leaves[i]);
  }
  if (wanted.empty()) return out;
  const Tensor y = compute(args, leaves, gamma, block, scale, cu);
  const std::vector<Tensor> grads = torch::autograd::grad({y}, wanted, {grad_y.detach()}, {},
                                                          /*create_graph=*/false,
                                                          /*allow_unused=*/true);
  const at::NoGradGuard no_grad;
  size_t next = 0;
  for (size_t i = 0; i < 3; ++i) {
    if (!needs[i]) continue;
    const Tensor& grad = grads[next++];
    if (grad.defined()) {
      out[i].copy_(grad);
    } else {
      out[i].zero_();
    }
  }
  return out;
}

struct Op {
  static constexpr char kName[] = "block_chacal";
  static constexpr char kInputs[] = "Tensor q, Tensor k, Tensor v";
  static constexpr char kTail[] = "float gamma, int? block=None, float? scale=None";
  static constexpr auto* kForward = forward_cpu;
  static constexpr auto* kBackward = backward_cpu;
  static constexpr auto* kForwardMeta = forward_meta;
  static constexpr auto* kBackwardMeta = backward_meta;
};
using Operator = Saved<Op, 3, double, Block, Scale>;

TORCH_LIBRARY_FRAGMENT(hopmix, m) { Operator::define(m); }
TORCH_LIBRARY_IMPL(hopmix, CPU, m) { Operator::implement_cpu(m); }
TORCH_LIBRARY_IMPL(hopmix, Meta, m) { Operator::implement_meta(m); }
TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { Operator::implement_autograd(m); }

}  // namespace

Tensor block_chacal(const Tensor& q, const Tensor& k, const Tensor& v, double gamma,
                    std::optional<int64_t> block, std::optional<double> scale,
                    const std::optional<Tensor>& cu_seqlens) {
  return Operator::call({q, k, v}, gamma, block, scale, cu_seqlens);
}

}  // namespace hopmix::ops
