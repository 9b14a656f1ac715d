// The block that composes m functions exactly, with constructed instead of trained weights: Theorem
// 3.3 of "Improving the Expressive Power of Hybrid Sequence Models via Multi-Hop Retrieval".
#pragma once

#include <memory>

#include "hopmix/nn/mixer.h"
#include "hopmix/nn/torch.h"

namespace hopmix::nn {

struct ConstructedBlockConfig {
  int64_t functions = 2;    // m
  int64_t n = 10;           // size of the domain
  bool cumulative = true;   // neighborhood reached in up to m links; otherwise in exactly m
  bool two_digits = false;  // encode values on two circles, as digits in base ceil(sqrt(n))
  torch::ScalarType dtype = torch::kFloat32;
};

/// One full-attention layer and one MURA layer of widths (1,...,1), the library's own, with one
/// head each, no MLP and no norm. With circle(w) = (cos, sin)(2 pi w / n), the token of f_r(v) = w
/// is the vector
///
///   [e_r (m+1), circle(v), circle(w), 0 0]
///
/// and a question x is [e_{m+1}, 0 0, circle(x), 0 0]. The full layer scores q_i . k_t = C [r_t =
/// r_i - 1] + cos(2 pi (w_i - v_t) / n), which is largest at the token of f_{r-1}(w_i), and writes
/// nothing. The MURA layer follows m such links and, with q = beta e_1, attends to what it reaches
/// in block 1: f_1(...f_m(x)), whose circle it writes to the last two numbers.
///
/// The best score exceeds the next by about 2 pi^2 / n^2, so float32 fails beyond some n; with two
/// digits the gap is 2 pi^2 / n.
class ConstructedBlock {
 public:
  /// Throws Error unless functions >= 1 and n >= 2.
  explicit ConstructedBlock(const ConstructedBlockConfig& config);

  /// functions int64 [B,m,n], entry [b,r,v] = f_{r+1}(v); x int64 [B,Q] -> int64 [B,Q], the block's
  /// answers to f_1(f_2(...f_m(x))). All questions are at the end of one sequence, and no token
  /// reads another question.
  torch::Tensor answers(const torch::Tensor& functions, const torch::Tensor& x);

  int64_t width() const { return width_; }

 private:
  torch::Tensor circles(const torch::Tensor& values) const;  // [...] -> [..., circle numbers]

  ConstructedBlockConfig config_;
  int64_t digits_, base_, width_;
  std::shared_ptr<Mixer> full_, mura_;
};

/// The compositions themselves, computed by following the values.
torch::Tensor compositions(const torch::Tensor& functions, const torch::Tensor& x);

}  // namespace hopmix::nn
