// Softmax attention of one token to its past, in decoding.
#pragma once

#include <optional>
#include <utility>

#include "hopmix/nn/torch.h"

namespace hopmix::nn {

using torch::Tensor;

/// Scores of one token against its past, q . k / sqrt(D): q [B,H,D], k [B,c,G,D] with H a multiple
/// of G -> [B,H,c].
Tensor token_scores(const Tensor& q, const Tensor& k);

/// Softmax over the past of one token: q [B,H,D], k [B,c,G,D] -> [B,H,c].
Tensor token_softmax(const Tensor& q, const Tensor& k);

/// The same over its past and, last, itself: own [B,1,G,D] -> [B,H,c+1].
Tensor token_softmax(const Tensor& q, const Tensor& k, const Tensor& own);

/// Softmax attention of one token to its past: q [B,H,D], k and v [B,c,G,...] -> [B,H,...]; zero if
/// it reads nothing. With `slots` (int32, nn/pattern_cache.h), reads only those. With `own`, the
/// token's own k and v, [B,1,G,...], also reads itself.
Tensor token_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const std::optional<Tensor>& slots = {},
                       const std::optional<std::pair<Tensor, Tensor>>& own = {});

/// Weighted sum over the past: p [B,H,c], v [B,c,G,D] -> [B,H,D]; zero if c = 0.
Tensor token_sum(const Tensor& p, const Tensor& v);

/// The same with the token itself: p [B,H,c+1], own [B,1,G,D].
Tensor token_sum(const Tensor& p, const Tensor& v, const Tensor& own);

}  // namespace hopmix::nn
