// Named offset sequences, and the spacing of cached(P). Private to this folder.
#pragma once

#include <cstdint>
#include <vector>

namespace hopmix {

/// The most offsets below n that an expression may have (a list of 128 MiB); `dense` and `window`
/// need no list. Every n up to this number is safe, and up to n = 2^31 every f that grows like
/// k^1.3 or faster.
inline constexpr int64_t kMaxOffsets = int64_t{1} << 24;

/// 1, 2, 3, 5, 8, ... below n.
std::vector<int64_t> fibonacci_offsets(int64_t n);

/// ceil(k * log2(k + 1)) + 1 for k = 0, 1, ..., made strictly increasing, below n.
std::vector<int64_t> nlogn_offsets(int64_t n);

/// a_0 = 1, a_{k+1} = a_k * ceil((f(k+1) - f(k)) / a_k), one for each of `offsets` (arXiv
/// 2605.31367, section 4.2).
std::vector<int64_t> cached_spacing(const std::vector<int64_t>& offsets);

}  // namespace hopmix
