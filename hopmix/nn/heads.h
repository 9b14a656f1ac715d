// Sizes of mixers with heads, and their projections.
#pragma once

#include <vector>

#include "hopmix/config/config.h"
#include "hopmix/nn/linear.h"
#include "hopmix/nn/mixer.h"
#include "hopmix/nn/positions.h"
#include "hopmix/nn/registry.h"

namespace hopmix::nn {

/// Sizes and inputs of a mixer with heads.
struct HeadsConfig {
  int64_t width = 64;       // model width
  int64_t heads = 4;        // must divide width
  bool token_shift = true;  // project concat(x_i, x_{i-1}) instead of x_i
  bool rope = false;        // rotate q and k by position
  int64_t end = 0;          // longest sequence; 0: no limit

  int64_t head_width() const { return width / heads; }
  int64_t input_width() const { return token_shift ? 2 * width : width; }
};

/// Reads `heads`, `token_shift` and `rope`; the defaults are the model's.
HeadsConfig read_heads(config::Table& table, const BlockDefaults& defaults);

/// The same without `rope`, for a mixer without q and k.
HeadsConfig read_heads_without_rope(config::Table& table, const BlockDefaults& defaults);

/// Throws Error unless the sizes are consistent.
void check_heads(const HeadsConfig& config);

/// [B,T,H*D] -> [B,T,H,D].
Tensor split_heads(const Tensor& x, int64_t heads);

/// The q, k and v of attention, each [B,T,H,D], from one map to 3 width. `input` [B,T,*] begins at
/// position `start`; q and k are rotated if the config says so.
std::vector<Tensor> project_qkv(Linear& qkv, const HeadsConfig& config, const Tensor& input,
                                const Starts& start);

}  // namespace hopmix::nn
