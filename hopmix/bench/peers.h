// What one would use without hopmix, built from PyTorch's operators. Tensors are [B,H,T,D], the
// layout these prefer; gates are [B,H,T].
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace hopmix::bench {

using at::Tensor;

/// Causal softmax attention, fused.
Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v);

/// The same, with the kappa best positions of each token, by a T x T matrix; hidden [T,T] is true
/// at j > i. -> (o, indices int64 [B,H,T,kappa]).
std::tuple<Tensor, Tensor> topk_by_scores(const Tensor& q, const Tensor& k, const Tensor& v,
                                          const Tensor& hidden, int64_t kappa);

/// Masks that a layer of fixed length would keep.
struct DenseSolveMask {
  explicit DenseSolveMask(int64_t length);
  Tensor hidden;    // [T,T]: j >= i; none in row 0, whose softmax would be NaN
  Tensor has_past;  // [T]: 0 for row 0, which reads nothing, otherwise 1
};

/// glr_attention on `dense` with T x T matrices (paper appendix B.3):
///   P = softmax over j < i of q_i . k_j / sqrt(D),
///   z = (I - diag(gate) P)^{-1} (d + d_self) v,  y = z - d v.
/// The backward is one transposed solve. bfloat16 is solved in float32, for lack of another solver.
Tensor dense_solve(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                   const Tensor& d, const Tensor& d_self, const DenseSolveMask& mask);

/// selective_scan in PyTorch's operators: token by token, with decays and inputs computed 64 tokens
/// at a time. This is the fastest of several forms (a plain loop, all decays at once, sums over
/// pairs of a chunk). Takes the arguments of ops::selective_scan, all of one type.
Tensor selective_scan_by_steps(const Tensor& u, const Tensor& delta, const Tensor& A,
                               const Tensor& B, const Tensor& C);

}  // namespace hopmix::bench
