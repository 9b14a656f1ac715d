#include "hopmix/nn/packing.h"

#include <algorithm>

#include "hopmix/base/error.h"

namespace hopmix::nn {
namespace {

Error wrong(int64_t entry, int64_t value, const std::string& right) {
  return Error("cu_seqlens[" + std::to_string(entry) + "] = " + std::to_string(value) +
               ": must be " + right);
}

}  // namespace

Packing::Packing(const torch::Tensor& cu_seqlens, const torch::Tensor& tokens) {
  if (cu_seqlens.scalar_type() != torch::kInt64 || cu_seqlens.dim() != 1 ||
      cu_seqlens.numel() == 0) {
    throw Error("cu_seqlens: must be int64 [N + 1], with 0 as its first entry");
  }
  if (tokens.size(0) != 1) {
    throw Error("tokens: must have one row with cu_seqlens, but has " +
                std::to_string(tokens.size(0)));
  }
  cu_seqlens_ = cu_seqlens.contiguous();
  const int64_t* at = cu_seqlens_->const_data_ptr<int64_t>();
  const int64_t last = cu_seqlens_->numel() - 1, time = tokens.size(1);
  if (at[0] != 0) throw wrong(0, at[0], "0");
  std::vector<int64_t> starts;
  for (int64_t n = 0; n < last; ++n) {
    if (at[n + 1] < at[n]) {
      throw wrong(n + 1, at[n + 1],
                  "at least cu_seqlens[" + std::to_string(n) + "] = " + std::to_string(at[n]));
    }
    if (at[n + 1] == at[n]) continue;
    starts.push_back(at[n]);
    lengths_.push_back(at[n + 1] - at[n]);
    longest_ = std::max(longest_, lengths_.back());
  }
  if (at[last] != time) {
    throw wrong(last, at[last], "the number of tokens, " + std::to_string(time));
  }
  starts_ = torch::tensor(starts, torch::kInt64);
  positions_ = torch::arange(time) -
               torch::repeat_interleave(starts_, torch::tensor(lengths_, torch::kInt64), 0, time);
}

torch::Tensor Packing::positions(int64_t time) const {
  return cu_seqlens_ ? positions_ : torch::arange(time);
}

}  // namespace hopmix::nn
