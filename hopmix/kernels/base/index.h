// Offsets into tensors. All are 64-bit, because B * T * H * D exceeds 2^31 in ordinary use.
#pragma once

#include <cstdint>

namespace hopmix::kernels {

/// Offset of [token, head, 0] in a tensor [tokens, heads, width], where token counts over batch and
/// time.
constexpr int64_t head_offset(int64_t token, int64_t heads, int64_t head, int64_t width) {
  return (token * heads + head) * width;
}

/// Offset of [batch, head, i] in a tensor [batch, heads, length].
constexpr int64_t plane_offset(int64_t batch, int64_t heads, int64_t head, int64_t length,
                               int64_t i) {
  return (batch * heads + head) * length + i;
}

}  // namespace hopmix::kernels
