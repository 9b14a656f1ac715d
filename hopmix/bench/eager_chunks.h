// Chunked linear recurrences as usually written in PyTorch: batched matrix products over all
// chunks, and a loop over chunks for the states. The operators of hopmix are compared with these.
#pragma once

#include <ATen/core/Tensor.h>

namespace hopmix::bench {

using at::Tensor;

/// S_t = decay_t S_{t-1} + k_t v_t^T, o_t = q_t S_t / sqrt(D), in chunks of 64. Tensors are
/// [B,T,H,D]. log_decay is undefined (no decay), [B,T,H], or [B,T,H,D]. The last form uses
/// sub-chunks of 16 (arXiv 2312.06635, section 4.3), with exact differences of sums of log decays,
/// so that nothing overflows.
Tensor eager_linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor& log_decay);

/// The (gated) delta rule in WY form (arXiv 2406.06484, section 3); log_decay is [B,T,H] or
/// undefined, beta [B,T,H].
Tensor eager_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
                        const Tensor& beta);

/// log_linear_attention, level by level: at each level, all blocks of chunks read the block before
/// them at once, and then blocks merge in pairs. log_decay [B,T,H], level_scales [B,T,H,L].
Tensor eager_log_linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Tensor& log_decay, const Tensor& level_scales);

}  // namespace hopmix::bench
