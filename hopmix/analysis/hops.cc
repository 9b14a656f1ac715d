#include "hopmix/analysis/hops.h"

#include <algorithm>
#include <bit>
#include <span>

namespace hopmix {
namespace {

// Completes a result from its `pairs`.
Hops finish(std::vector<int64_t> pairs, int64_t n) {
  Hops hops;
  int64_t reached = 0;
  double total = 0;  // exact below 2^53
  for (size_t h = 0; h < pairs.size(); ++h) {
    reached += pairs[h];
    total += static_cast<double>(h) * static_cast<double>(pairs[h]);
  }
  hops.unreachable = n * (n - 1) / 2 - reached;
  hops.pairs = std::move(pairs);
  if (hops.unreachable > 0) return hops;
  hops.diameter = std::max<int64_t>(0, static_cast<int64_t>(hops.pairs.size()) - 1);
  hops.mean = reached > 0 ? total / static_cast<double>(reached) : 0;
  return hops;
}

void add_pairs(std::vector<int64_t>& pairs, size_t h, int64_t count) {
  if (count == 0) return;
  if (pairs.size() <= h) pairs.resize(h + 1);
  pairs[h] += count;
}

// The readers of each token: the transpose of a pattern. `row(i)` returns the tokens that i reads.
template <class Row>
Csr transpose(int64_t n, Row row) {
  Csr readers;
  readers.row_ptr.assign(n + 1, 0);
  for (int64_t i = 0; i < n; ++i) {
    for (const int32_t j : row(i)) ++readers.row_ptr[j + 1];
  }
  for (int64_t j = 0; j < n; ++j) readers.row_ptr[j + 1] += readers.row_ptr[j];
  readers.cols.resize(readers.row_ptr[n]);
  std::vector<int64_t> at(readers.row_ptr.begin(), readers.row_ptr.end() - 1);
  for (int64_t i = 0; i < n; ++i) {
    for (const int32_t j : row(i)) readers.cols[at[j]++] = static_cast<int32_t>(i);
  }
  return readers;
}

// Breadth-first search from 64 targets at once (Then et al., "The More the Merrier", VLDB 2014):
// bit b of a token's word stands for target first + b. A token is visited again only when another
// bit reaches it.
class Search {
 public:
  explicit Search(const Csr& readers)
      : readers_(readers), n_(readers.rows()), seen_(n_), fresh_(n_), next_(n_) {}

  void run(int64_t first, std::vector<int64_t>& pairs) {
    const int64_t last = std::min(first + 64, n_);
    int64_t left = 0;  // pairs not reached yet
    std::fill(seen_.begin() + first, seen_.end(), 0);
    frontier_.clear();
    for (int64_t j = first; j < last; ++j) {
      seen_[j] = fresh_[j] = uint64_t{1} << (j - first);
      frontier_.push_back(static_cast<int32_t>(j));
      left += n_ - 1 - j;
    }
    for (size_t h = 1; left > 0 && !frontier_.empty(); ++h) {
      const int64_t reached = step();
      add_pairs(pairs, h, reached);
      left -= reached;
    }
    for (const int32_t i : frontier_) fresh_[i] = 0;
  }

 private:
  // One hop further. Returns the number of pairs it reaches.
  int64_t step() {
    touched_.clear();
    for (const int32_t j : frontier_) {
      const uint64_t bits = fresh_[j];
      fresh_[j] = 0;
      for (int64_t e = readers_.row_ptr[j]; e < readers_.row_ptr[j + 1]; ++e) {
        const int32_t i = readers_.cols[e];
        if ((bits & ~seen_[i]) == 0) continue;
        if (next_[i] == 0) touched_.push_back(i);
        next_[i] |= bits;
      }
    }
    int64_t reached = 0;
    for (const int32_t i : touched_) {
      fresh_[i] = next_[i] & ~seen_[i];
      next_[i] = 0;
      seen_[i] |= fresh_[i];
      reached += std::popcount(fresh_[i]);
    }
    frontier_.swap(touched_);
    return reached;
  }

  const Csr& readers_;
  const int64_t n_;
  std::vector<uint64_t> seen_;   // reached so far
  std::vector<uint64_t> fresh_;  // reached by the last hop
  std::vector<uint64_t> next_;   // reached by this one
  std::vector<int32_t> frontier_, touched_;
};

Hops search_all(const Csr& readers) {
  std::vector<int64_t> pairs;
  Search search(readers);
  for (int64_t first = 0; first < readers.rows(); first += 64) search.run(first, pairs);
  return finish(std::move(pairs), readers.rows());
}

}  // namespace

std::vector<int32_t> hops_by_distance(const std::vector<int64_t>& offsets, int64_t n) {
  constexpr int32_t kNone = -1;
  std::vector<int32_t> hops(n, kNone);
  if (n > 0) hops[0] = 0;
  for (int64_t s = 1; s < n; ++s) {
    int32_t best = kNone;
    for (const int64_t f : offsets) {
      if (f > s) break;
      const int32_t before = hops[s - f];
      if (before != kNone && (best == kNone || before < best)) best = before;
    }
    if (best != kNone) hops[s] = best + 1;
  }
  return hops;
}

Hops hops(const Csr& pattern) {
  return search_all(transpose(pattern.rows(), [&](int64_t i) {
    return std::span(pattern.cols)
        .subspan(pattern.row_ptr[i], pattern.row_ptr[i + 1] - pattern.row_ptr[i]);
  }));
}

Hops hops(const Pattern& pattern) {
  const int64_t n = pattern.size();
  if (pattern.offsets().empty()) {
    std::vector<int32_t> cols;
    return search_all(transpose(n, [&](int64_t i) -> const std::vector<int32_t>& {
      pattern.row(i, cols);
      return cols;
    }));
  }
  const std::vector<int32_t> by_distance = hops_by_distance(pattern.offsets(), n);
  std::vector<int64_t> pairs;
  for (int64_t s = 1; s < n; ++s) {
    if (by_distance[s] > 0) add_pairs(pairs, by_distance[s], n - s);
  }
  return finish(std::move(pairs), n);
}

}  // namespace hopmix
