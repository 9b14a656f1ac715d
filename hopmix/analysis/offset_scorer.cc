#include "hopmix/analysis/offset_scorer.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace hopmix {
namespace {

// target |= source << shift, over bit sets of the same size.
void or_shifted(std::vector<uint64_t>& target, const std::vector<uint64_t>& source, int64_t shift) {
  const int64_t words = static_cast<int64_t>(target.size()), whole = shift / 64;
  const int bits = static_cast<int>(shift % 64);
  if (bits == 0) {
    for (int64_t w = whole; w < words; ++w) target[w] |= source[w - whole];
    return;
  }
  if (whole < words) target[whole] |= source[0] << bits;
  for (int64_t w = whole + 1; w < words; ++w) {
    target[w] |= source[w - whole] << bits | source[w - whole - 1] >> (64 - bits);
  }
}

}  // namespace

OffsetScorer::OffsetScorer(int64_t n)
    : n_(n), words_((n + 63) / 64), unseen_(words_), fresh_(words_), next_(words_) {}

// Every pair at distance s adds 1 for each h below d(s): the sum over h of the pairs that h hops do
// not reach.
double OffsetScorer::mean_hops(const std::vector<int64_t>& offsets) {
  if (n_ < 2) return 0;
  std::fill(unseen_.begin(), unseen_.end(), ~uint64_t{0});
  if (n_ % 64 != 0) unseen_.back() = (uint64_t{1} << n_ % 64) - 1;
  unseen_[0] &= ~uint64_t{1};
  std::fill(fresh_.begin(), fresh_.end(), 0);
  fresh_[0] = 1;
  const int64_t pairs = n_ * (n_ - 1) / 2;
  int64_t total = pairs, left = pairs;
  while (left > 0) {
    std::fill(next_.begin(), next_.end(), 0);
    for (const int64_t f : offsets) or_shifted(next_, fresh_, f);
    left = 0;
    bool any = false;
    for (int64_t w = 0; w < words_; ++w) {
      next_[w] &= unseen_[w];
      any |= next_[w] != 0;
      unseen_[w] &= ~next_[w];
      for (uint64_t bits = unseen_[w]; bits != 0; bits &= bits - 1) {
        left += n_ - (64 * w + std::countr_zero(bits));
      }
    }
    if (!any) return std::numeric_limits<double>::infinity();
    total += left;
    fresh_.swap(next_);
  }
  return static_cast<double>(total) / static_cast<double>(pairs);
}

int64_t OffsetScorer::cache_peak(const std::vector<int64_t>& offsets) const {
  // Token t is kept until its last reader, t + f for the largest f that stays below n.
  int64_t peak = 0, live = 0;
  size_t k = offsets.size();
  std::vector<int32_t> leaves(n_);  // number of tokens dropped at each token
  for (int64_t t = 0; t < n_; ++t) {
    while (k > 0 && t + offsets[k - 1] >= n_) --k;
    if (k > 0) {
      ++live;
      ++leaves[t + offsets[k - 1]];
    }
    live -= leaves[t];
    peak = std::max(peak, live);
  }
  return peak;
}

}  // namespace hopmix
