// What a layer publishes for later layers in a forward pass or a step (Context::mem).
#pragma once

#include <map>
#include <string>

#include "hopmix/nn/mixer.h"

namespace hopmix::nn {

/// The best positions of tokens by an attention's scores; undefined if no reader asked for them.
struct Selection {
  Tensor indices;  // int32 [B,T,H,kappa], best first, -1 padded; in a step, T = 1, the newest token
  Tensor pointers;  // in a step: int32 [B,n,H,kept], for all tokens
};

/// In a step, q belongs to the newest token, [B,1,H,D], while k and v cover all tokens.
struct SharedCache {
  Tensor q;                      // [B,T,H,D]
  Tensor k, v;                   // [B,T,KV heads,D]
  Selection with_self, earlier;  // among all tokens up to this one; among strictly earlier ones
  std::map<std::string, Tensor> neighborhoods;  // by request: computed once, read by many layers

  const Selection& selection(bool include_self) const { return include_self ? with_self : earlier; }
};

}  // namespace hopmix::nn
