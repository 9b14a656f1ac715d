// Sequences packed into one row of tokens: documents that do not see each other.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "hopmix/nn/torch.h"

namespace hopmix::nn {

/// Where the sequences of a batch begin and end. By default each row is one sequence; otherwise the
/// batch is a single row of several concatenated sequences. Created once per pass, for all layers.
class Packing {
 public:
  Packing() = default;

  /// cu_seqlens int64 [N+1], as the operators take it, rising from 0 to T: sequence n is tokens[0,
  /// cu_seqlens[n]:cu_seqlens[n+1]] and may be empty. tokens [1,T,...]. Throws Error if they do not
  /// match.
  Packing(const torch::Tensor& cu_seqlens, const torch::Tensor& tokens);

  /// Whether a row holds several sequences.
  explicit operator bool() const { return cu_seqlens_.has_value(); }

  /// The argument for the operators; nothing by default.
  const std::optional<torch::Tensor>& cu_seqlens() const { return cu_seqlens_; }

  // For nonempty sequences, in order; nothing by default:
  const std::vector<int64_t>& lengths() const { return lengths_; }
  const torch::Tensor& starts() const { return starts_; }  // int64, their first tokens

  /// The number of tokens of the longest sequence, in rows of `time`.
  int64_t longest(int64_t time) const { return cu_seqlens_ ? longest_ : time; }

  /// The position in its sequence of each of a row's `time` tokens: int64 [time].
  torch::Tensor positions(int64_t time) const;

 private:
  std::optional<torch::Tensor> cu_seqlens_;
  std::vector<int64_t> lengths_;
  torch::Tensor starts_, positions_;
  int64_t longest_ = 0;
};

}  // namespace hopmix::nn
