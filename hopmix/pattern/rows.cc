// Computes row i of each kind of pattern on the fly.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "hopmix/base/error.h"
#include "hopmix/base/mix_bits.h"
#include "hopmix/pattern/node.h"

namespace hopmix {
namespace {

using namespace terms;

using Cols = std::vector<int32_t>;

void append(Cols& cols, int64_t j) { cols.push_back(static_cast<int32_t>(j)); }

void append_range(Cols& cols, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; ++j) append(cols, j);
}

void append_row(const Offsets& p, int64_t i, Cols& cols) {
  size_t k = std::upper_bound(p.values.begin(), p.values.end(), i) - p.values.begin();
  while (k-- > 0) append(cols, i - p.values[k]);
}

// The closed form of arXiv 2605.31367, section 4.2, which counts from 1: token t = i + 1 reads
// a_k * ceil((t - f(k)) / a_k) for every f(k) < t. It does not increase with k, so equal values are
// adjacent.
void cached_row(const Cached& p, int64_t i, Cols& cols) {
  const int64_t t = i + 1;
  size_t k = std::lower_bound(p.offsets.begin(), p.offsets.end(), t) - p.offsets.begin();
  int64_t last = 0;
  while (k-- > 0) {
    const int64_t a = p.spacing[k];
    const int64_t token = a * ((t - p.offsets[k] + a - 1) / a);
    if (token != last) append(cols, token - 1);
    last = token;
  }
}

void append_row(const Cached& p, int64_t i, Cols& cols) { cached_row(p, i, cols); }

void append_row(const Strided& p, int64_t i, Cols& cols) {
  for (int64_t j = i % p.stride; j < i; j += p.stride) append(cols, j);
}

// Floyd's sampling without replacement (Bentley, Floyd 1987). Draw number d of row i is a function
// of (seed, i, d), so rows are independent of one another and the same on every machine. The bias
// of % is below 2^-32.
void append_row(const Random& p, int64_t i, Cols& cols) {
  if (p.reads >= i) return append_range(cols, 0, i);
  uint64_t state = mix_bits(mix_bits(p.seed + kGoldenStep) + static_cast<uint64_t>(i));
  std::unordered_set<int64_t> drawn;
  for (int64_t j = i - p.reads; j < i; ++j) {
    state += kGoldenStep;
    const auto t = static_cast<int64_t>(mix_bits(state) % static_cast<uint64_t>(j + 1));
    append(cols, drawn.insert(t).second ? t : *drawn.insert(j).first);
  }
  std::sort(cols.end() - p.reads, cols.end());
}

void append_row(const Fenwick&, int64_t i, Cols& cols) {
  const size_t begin = cols.size();
  for (int64_t end = i; end > 0; end &= end - 1) append(cols, end - 1);
  std::reverse(cols.begin() + static_cast<int64_t>(begin), cols.end());
}

void append_row(const Dag& p, int64_t i, Cols& cols) {
  cols.insert(cols.end(), p.rows.cols.begin() + p.rows.row_ptr[i],
              p.rows.cols.begin() + p.rows.row_ptr[i + 1]);
}

// The tokens begin .. end-1, for the kinds that read no others; those of a union join first, so
// that its cost is that of what it reads.
using Range = std::pair<int64_t, int64_t>;

Range range_of(const Dense&, int64_t i) { return {0, i}; }
Range range_of(const Window& p, int64_t i) { return {std::max<int64_t>(0, i - p.width), i}; }
Range range_of(const Global& p, int64_t i) { return {0, std::min(i, p.count)}; }
Range range_of(const Blocks& p, int64_t i) { return {i - i % p.length, i}; }

template <typename Kind>
concept IsRange = requires(const Kind& p) {
  range_of(p, int64_t{});
};

template <IsRange Kind>
void append_row(const Kind& p, int64_t i, Cols& cols) {
  const auto [begin, end] = range_of(p, i);
  append_range(cols, begin, end);
}

void append_union(std::vector<Range>& ranges, Cols& cols) {
  std::sort(ranges.begin(), ranges.end());
  int64_t from = 0;
  for (const auto& [begin, end] : ranges) {
    append_range(cols, std::max(begin, from), end);
    from = std::max(from, end);
  }
}

// Merges ascending pieces, which end at `ends`, into one.
void merge(std::vector<size_t>& ends, Cols& cols) {
  const auto at = [&](size_t place) { return cols.begin() + static_cast<int64_t>(place); };
  while (ends.size() > 1) {  // pairs, so that no token moves more than log2(pieces) times
    std::vector<size_t> merged;
    for (size_t piece = 0; piece < ends.size(); piece += 2) {
      const size_t begin = piece > 0 ? ends[piece - 1] : 0;
      const size_t end = ends[std::min(piece + 1, ends.size() - 1)];
      std::inplace_merge(at(begin), at(ends[piece]), at(end));
      merged.push_back(end);
    }
    ends = std::move(merged);
  }
  cols.erase(std::unique(cols.begin(), cols.end()), cols.end());
}

// Ranges of rows, for the kinds whose neighbouring rows have much in common. Each appends its rows
// to `cols`, one after another.

void append_rows(const Offsets& p, int64_t begin, int64_t end, Csr& out) {
  size_t count = std::upper_bound(p.values.begin(), p.values.end(), begin) - p.values.begin();
  const size_t most = std::upper_bound(p.values.begin(), p.values.end(), std::max(begin, end - 1)) -
                      p.values.begin();
  out.cols.resize(most * (end - begin));
  int32_t* to = out.cols.data();
  for (int64_t i = begin; i < end; ++i) {
    while (count < most && p.values[count] <= i) ++count;
    for (size_t k = count; k-- > 0;) *to++ = static_cast<int32_t>(i - p.values[k]);
    out.row_ptr.push_back(to - out.cols.data());
  }
  out.cols.resize(to - out.cols.data());
}

// Like cached_row(), but one f(k) at a time: what token t reads for f(k) stays the same until
// t - f(k) passes it, so one division serves all rows.
void append_rows(const Cached& p, int64_t begin, int64_t end, Csr& out) {
  const size_t levels =
      std::lower_bound(p.offsets.begin(), p.offsets.end(), end) - p.offsets.begin();
  const int64_t count = end - begin;
  out.cols.assign(levels * count, 0);  // [row, level from the last]: token from 1, or 0
  for (size_t k = 0; k < levels; ++k) {
    const int64_t a = p.spacing[k], f = p.offsets[k];
    int64_t t = std::max(begin + 1, f + 1);
    int64_t token = a * ((t - f + a - 1) / a);
    int32_t* at = out.cols.data() + (t - begin - 1) * levels + (levels - 1 - k);
    for (; t <= end; ++t, at += levels) {
      token += t - f > token ? a : 0;
      *at = static_cast<int32_t>(token);
    }
  }
  // Equal values are adjacent: keep one of each, in place.
  const int32_t* from = out.cols.data();
  int32_t* to = out.cols.data();
  for (int64_t r = 0; r < count; ++r) {
    int32_t last = 0;
    for (size_t k = 0; k < levels; ++k) {
      const int32_t token = *from++;
      *to = token - 1;
      to += token != last;
      last = token;
    }
    out.row_ptr.push_back(to - out.cols.data());
  }
  out.cols.resize(to - out.cols.data());
}

// All other kinds, row by row.
template <typename Term>
void append_rows(const Term& p, int64_t begin, int64_t end, Csr& out) {
  for (int64_t i = begin; i < end; ++i) {
    append_row(p, i, out.cols);
    out.row_ptr.push_back(static_cast<int64_t>(out.cols.size()));
  }
}

}  // namespace

void Pattern::rows(int64_t begin, int64_t end, Csr& out) const {
  if (begin < 0 || begin > end || end > n_) {
    throw Error("rows " + std::to_string(begin) + " to " + std::to_string(end) +
                " must be within 0 to " + std::to_string(n_));
  }
  out.row_ptr.assign(1, 0);
  out.cols.clear();
  if (begin == end) return;
  if (root_->terms.size() == 1) {
    std::visit([&](const auto& p) { append_rows(p, begin, end, out); }, root_->terms.front());
    return;
  }
  Cols cols;
  for (int64_t i = begin; i < end; ++i) {
    row(i, cols);
    out.cols.insert(out.cols.end(), cols.begin(), cols.end());
    out.row_ptr.push_back(static_cast<int64_t>(out.cols.size()));
  }
}

void Pattern::row(int64_t i, std::vector<int32_t>& cols) const {
  if (i < 0 || i >= n_) {
    throw Error("row " + std::to_string(i) + " must be at least 0 and below " + std::to_string(n_));
  }
  cols.clear();
  if (root_->terms.size() == 1) {
    return std::visit([&](const auto& p) { append_row(p, i, cols); }, root_->terms.front());
  }
  std::vector<Range> ranges;
  std::vector<size_t> ends;
  const auto read = [&]<typename Kind>(const Kind& p) {
    if constexpr (IsRange<Kind>) {
      ranges.push_back(range_of(p, i));
    } else {
      append_row(p, i, cols);
      ends.push_back(cols.size());
    }
  };
  for (const Term& term : root_->terms) std::visit(read, term);
  append_union(ranges, cols);
  ends.push_back(cols.size());
  merge(ends, cols);
}

}  // namespace hopmix
