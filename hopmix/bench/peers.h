// What one would use without hopmix, of PyTorch's own operators. Tensors are [B,H,T,D], the layout
// that suits those; gates are [B,H,T].
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace hopmix::bench {

using at::Tensor;

/// Causal softmax attention, fused.
Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v);

/// The same with the kappa best positions of each token, by a matrix of T by T; hidden [T,T] is
/// true at j > i. -> (o, indices int64 [B,H,T,kappa]).
std::tuple<Tensor, Tensor> topk_by_scores(const Tensor& q, const Tensor& k, const Tensor& v,
                                          const Tensor& hidden, int64_t kappa);

/// What a layer of one length keeps.
struct DenseSolveMask {
  explicit DenseSolveMask(int64_t length);
  Tensor hidden;    // [T,T]: of row i all but j < i; of row 0 none, whose softmax would be NaN
  Tensor has_past;  // [T]: 0 for row 0, which reads nothing, else 1
};

/// glr_attention on `dense` by matrices of T by T (paper appendix B.3):
///   P = softmax over j < i of q_i . k_j / sqrt(D),
///   z = (I - diag(gate) P)^{-1} (d + d_self) v,  y = z - d v.
/// The backward is one transposed solve. bfloat16 is solved in float32: there is no other solver.
Tensor dense_solve(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                   const Tensor& d, const Tensor& d_self, const DenseSolveMask& mask);

/// selective_scan in PyTorch's operators: tokens one after another, their decays and inputs
/// computed 64 tokens at a time. Of such forms (a plain loop, all decays at once, sums over pairs
/// of a chunk) the quickest. Arguments are those of ops::selective_scan; of one type.
Tensor selective_scan_by_steps(const Tensor& u, const Tensor& delta, const Tensor& A,
                               const Tensor& B, const Tensor& C);

}  // namespace hopmix::bench
