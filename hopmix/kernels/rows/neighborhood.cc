#include "hopmix/kernels/rows/neighborhood.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <vector>

#include "hopmix/kernels/base/index.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/rows/token_set.h"

namespace hopmix::kernels {
namespace {

// One head of one sequence.
class Links {
 public:
  Links(const Retrieved& in, const Sequence& s, int64_t head)
      : stride_(in.heads * in.width),
        width_(in.width),
        data_(in.indices + head_offset(in.sequences.first_token(s), in.heads, head, in.width)) {}

  // body(t) for the first k tokens retrieved for i.
  template <typename Body>
  void each(int64_t i, int64_t k, const Body& body) const {
    const int32_t* list = data_ + i * stride_;
    for (int64_t r = 0; r < width_ && k > 0; ++r) {
      if (list[r] < 0) continue;
      body(list[r]);
      --k;
    }
  }

 private:
  int64_t stride_, width_;
  const int32_t* data_;
};

// The best token retrieved for each, or -1: hops of width 1 need no more.
std::vector<int32_t> best_links(const Links& links, int64_t length) {
  std::vector<int32_t> best(length, -1);
  for (int64_t i = 0; i < length; ++i) links.each(i, 1, [&](int32_t t) { best[i] = t; });
  return best;
}

// The neighborhoods of one head, row by row.
class Search {
 public:
  Search(const Links& links, const std::vector<int32_t>& best, std::span<const int64_t> widths,
         bool cumulative, int64_t length)
      : links_(links),
        best_(best),
        widths_(widths),
        cumulative_(cumulative),
        found_(length),
        level_(best.empty() ? length : 0) {}

  void row(int64_t i, int32_t* out, int64_t size) {
    if (best_.empty()) {
      by_levels(i);
    } else {
      by_chains(i);
    }
    int64_t count = 0;
    found_.take([&](int32_t token) { out[count++] = token; });
    std::fill(out + count, out + size, -1);
  }

 private:
  // Each token of the first set heads a chain of best tokens.
  void by_chains(int64_t i) {
    const size_t hops = widths_.size() - 1;
    links_.each(i, widths_[0], [&](int32_t t) {
      for (size_t hop = 0; hop < hops && t >= 0; ++hop) {
        if (cumulative_) found_.add(t);
        t = best_[t];
      }
      if (t >= 0) found_.add(t);
    });
  }

  // A token that two of the last level lead to is followed once.
  void by_levels(int64_t i) {
    tokens_.assign(1, static_cast<int32_t>(i));
    for (size_t hop = 0; hop < widths_.size(); ++hop) {
      const bool last = hop + 1 == widths_.size();
      for (const int32_t t : tokens_) {
        links_.each(t, widths_[hop], [&](int32_t to) {
          if (last || cumulative_) found_.add(to);
          if (!last) level_.add(to);
        });
      }
      tokens_.clear();
      level_.take([&](int32_t token) { tokens_.push_back(token); });
    }
  }

  const Links& links_;
  const std::vector<int32_t>& best_;  // empty unless every width but the first is 1
  std::span<const int64_t> widths_;
  bool cumulative_;
  TokenSet found_, level_;
  std::vector<int32_t> tokens_;  // of the level before
};

}  // namespace

int64_t neighborhood_size(std::span<const int64_t> widths, bool cumulative) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  int64_t product = 1, sum = 0;
  for (const int64_t k : widths) {
    if (k > kMost / product) return -1;
    product *= k;
    sum += product;
    if (cumulative && sum > kMost) return -1;
  }
  return cumulative ? sum : product;
}

void neighborhood(const Retrieved& in, std::span<const int64_t> widths, bool cumulative,
                  int32_t* out) {
  struct Task {
    int64_t sequence, head, begin;
  };
  constexpr int64_t kRows = 1024;  // of one task
  const int64_t size = neighborhood_size(widths, cumulative), heads = in.heads;
  const int64_t entries = in.sequences.tokens() * heads * size;
  const bool chains =
      std::all_of(widths.begin() + 1, widths.end(), [](int64_t k) { return k == 1; });
  std::vector<Task> tasks;
  for (int64_t n = 0; n < in.sequences.count(); ++n) {
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t i = 0; i < in.sequences.list[n].length; i += kRows)
        tasks.push_back({n, head, i});
    }
  }
  std::vector<std::vector<int32_t>> best(in.sequences.count() * heads);
  if (chains) {
    parallel_tasks(std::ssize(best), entries, [&](int64_t task) {
      const Sequence& s = in.sequences.list[task / heads];
      best[task] = best_links(Links(in, s, task % heads), s.length);
    });
  }
  parallel_tasks(std::ssize(tasks), entries, [&](int64_t task) {
    const auto& [sequence, head, begin] = tasks[task];
    const Sequence& s = in.sequences.list[sequence];
    const Links links(in, s, head);
    Search search(links, best[sequence * heads + head], widths, cumulative, s.length);
    for (int64_t i = begin; i < std::min(begin + kRows, s.length); ++i) {
      const int64_t token = in.sequences.first_token(s) + i;
      search.row(i, out + head_offset(token, heads, head, size), size);
    }
  });
}

}  // namespace hopmix::kernels
