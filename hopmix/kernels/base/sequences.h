// Which tokens of a [B, T] batch form a sequence: one list describes batched and packed input
// alike.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace hopmix::kernels {

/// Tokens [start, start + length) of one batch element; nothing crosses their edges. May be empty.
struct Sequence {
  int64_t batch, start, length;
};

/// The sequences of a batch. Together they cover every token exactly once.
struct Sequences {
  int64_t batch = 0;  // B
  int64_t time = 0;   // T
  std::vector<Sequence> list;

  /// One sequence per batch element.
  static Sequences batched(int64_t batch, int64_t time) {
    Sequences all{batch, time, {}};
    for (int64_t b = 0; b < batch; ++b) all.list.push_back({b, 0, time});
    return all;
  }

  /// B = 1 with N concatenated sequences: `bounds` [N + 1] rises from 0 to T.
  static Sequences packed(std::span<const int64_t> bounds) {
    Sequences all{1, bounds.back(), {}};
    for (size_t n = 0; n + 1 < bounds.size(); ++n) {
      all.list.push_back({0, bounds[n], bounds[n + 1] - bounds[n]});
    }
    return all;
  }

  int64_t tokens() const { return batch * time; }
  int64_t count() const { return static_cast<int64_t>(list.size()); }

  /// Index of the sequence's first token, counted over batch and time.
  int64_t first_token(const Sequence& s) const { return s.batch * time + s.start; }

  int64_t longest() const {
    int64_t length = 0;
    for (const Sequence& s : list) length = std::max(length, s.length);
    return length;
  }
};

}  // namespace hopmix::kernels
