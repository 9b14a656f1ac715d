// Positions picked by score, and chains of them, for one token in decoding. Whole sequences use
// ops::attention_topk and ops::neighborhood.
#pragma once

#include <cstdint>
#include <vector>

#include "hopmix/nn/torch.h"

namespace hopmix::nn {

/// The kappa best of one token's scores [B,H,n], best first, ties broken toward the earlier
/// position, NaN below every number: int32 [B,H,kappa], -1 padded.
torch::Tensor best_positions(const torch::Tensor& scores, int64_t kappa);

/// indices [B,T,H,kappa], best first, of the tokens at these positions, int64 [T] ->
/// [B,T,H,kappa-1]: each row without its own token, or otherwise without its last entry.
torch::Tensor without_self(const torch::Tensor& indices, const torch::Tensor& positions);

/// The neighborhood of one token (ops::neighborhood): newest [B,H,kappa] are its own best
/// positions, pointers [B,n,H,P] those of every token, itself last (undefined if there is one
/// width) -> sorted int32 [B,H,W], -1 padded.
torch::Tensor token_neighborhood(const torch::Tensor& newest, const torch::Tensor& pointers,
                                 const std::vector<int64_t>& widths, bool cumulative);

/// Entries of a row of neighborhoods: prod(widths), or the sum of all prefix products.
int64_t neighborhood_width(const std::vector<int64_t>& widths, bool cumulative);

}  // namespace hopmix::nn
