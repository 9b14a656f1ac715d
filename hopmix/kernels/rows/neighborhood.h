// Which tokens are reached over several retrievals: the neighborhoods of MURA (Multi-hop Retrieval
// Attention, equation 10).
#pragma once

#include <cstdint>
#include <span>

#include "hopmix/kernels/base/sequences.h"

namespace hopmix::kernels {

/// What was retrieved for each token and head, best first, -1 for none; positions count from the
/// first token of their sequence, and none is later than its row.
struct Retrieved {
  const int32_t* indices;  // [B, T, H, K]
  int64_t heads;           // H
  int64_t width;           // K
  const Sequences& sequences;
};

/// The most tokens that a neighborhood holds: prod(widths), or if `cumulative` the sum of the
/// products of their beginnings; -1 if that is no int32.
int64_t neighborhood_size(std::span<const int64_t> widths, bool cumulative);

/// With N^(k)(i) the first k tokens retrieved for i and
///   N^(k1..km)(i) = the union of N^(km)(t) over t in N^(k1..k(m-1))(i):
/// this set, or if `cumulative` the union of those of all beginnings of `widths` (at least one,
/// each
/// >= 1). out [B, T, H, neighborhood_size()]: ascending, each token once, then -1. Time O(size) a
/// row.
void neighborhood(const Retrieved& in, std::span<const int64_t> widths, bool cumulative,
                  int32_t* out);

}  // namespace hopmix::kernels
