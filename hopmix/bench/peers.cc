#include "hopmix/bench/peers.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace hopmix::bench {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// z = (I - B)^{-1} r for strictly lower triangular B. The solver takes the diagonal as ones,
// whatever it holds.
struct UnitSolve : public Function<UnitSolve> {
  static Tensor forward(AutogradContext* context, const Tensor& b, const Tensor& r) {
    const Tensor z = at::linalg_solve_triangular(-b, r, /*upper=*/false, /*left=*/true,
                                                 /*unitriangular=*/true);
    context->save_for_backward({b, z});
    return z;
  }

  // dr = (I - B)^{-T} dz, dB = dr z^T.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &b = saved[0], &z = saved[1];
    const Tensor dr = at::linalg_solve_triangular(-b.mT(), gradients[0], /*upper=*/true,
                                                  /*left=*/true, /*unitriangular=*/true);
    return {at::matmul(dr, z.mT()), dr};
  }
};

}  // namespace

Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v) {
  return at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                          /*is_causal=*/true);
}

std::tuple<Tensor, Tensor> topk_by_scores(const Tensor& q, const Tensor& k, const Tensor& v,
                                          const Tensor& hidden, int64_t kappa) {
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  const Tensor scores =
      at::matmul(q * scale, k.mT()).masked_fill(hidden, -std::numeric_limits<double>::infinity());
  const Tensor best = std::get<1>(at::topk(scores.detach(), std::min(kappa, k.size(-2)), -1));
  return {at::matmul(at::softmax(scores, -1), v), best};
}

DenseSolveMask::DenseSolveMask(int64_t length)
    : hidden(at::ones({length, length}, at::kBool).triu()), has_past(at::ones({length})) {
  if (length == 0) return;
  hidden[0].fill_(false);
  has_past[0] = 0;
}

Tensor dense_solve(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                   const Tensor& d, const Tensor& d_self, const DenseSolveMask& mask) {
  const at::ScalarType dtype = v.scalar_type();
  const at::ScalarType solved = dtype == at::kBFloat16 ? at::kFloat : dtype;
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  const Tensor logits = at::matmul(q * scale, k.mT())
                            .masked_fill(mask.hidden, -std::numeric_limits<double>::infinity());
  const Tensor row_gate = (gate * mask.has_past.to(dtype)).unsqueeze(-1);
  const Tensor b = (at::softmax(logits, -1) * row_gate).to(solved);
  const Tensor own = d.unsqueeze(-1) * v;
  const Tensor right = own + d_self.unsqueeze(-1) * v;
  return (UnitSolve::apply(b, right.to(solved)) - own).to(dtype);
}

Tensor selective_scan_by_steps(const Tensor& u, const Tensor& delta, const Tensor& A,
                               const Tensor& B, const Tensor& C) {
  constexpr int64_t kTokens = 64;
  Tensor h = at::zeros({u.size(0), A.size(0), A.size(1)}, u.options());
  std::vector<Tensor> outputs;
  for (int64_t begin = 0; begin < u.size(1); begin += kTokens) {
    const auto part = [&](const Tensor& x) { return x.slice(1, begin, begin + kTokens); };
    const Tensor step = part(delta).unsqueeze(3);
    const std::vector<Tensor> decays = at::exp(step * A).unbind(1);
    const std::vector<Tensor> inputs =
        (step * part(u).unsqueeze(3) * part(B).unsqueeze(2)).unbind(1);
    std::vector<Tensor> states;
    for (size_t t = 0; t < decays.size(); ++t) {
      h = at::addcmul(inputs[t], decays[t], h);
      states.push_back(h);
    }
    outputs.push_back(at::einsum("bten,btn->bte", {at::stack(states, 1), part(C)}));
  }
  return outputs.empty() ? u : at::cat(outputs, 1);
}

}  // namespace hopmix::bench
