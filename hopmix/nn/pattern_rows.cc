#include "hopmix/nn/pattern_rows.h"

#include <algorithm>

namespace hopmix::nn {
namespace {

// Whether the pattern's index list fits kLargestList; stops counting there.
bool list_is_small(const Pattern& pattern) {
  constexpr int64_t kPerRow = sizeof(int64_t), kPerRead = sizeof(int32_t);
  int64_t bytes = kPerRow * (pattern.size() + 1);
  std::vector<int32_t> cols;
  for (int64_t i = 0; i < pattern.size() && bytes <= PatternRows::kLargestList; ++i) {
    pattern.row(i, cols);
    bytes += kPerRead * static_cast<int64_t>(cols.size());
  }
  return bytes <= PatternRows::kLargestList;
}

// Whether the kernels, if they know the pattern, keep a small cache for it, which beats a list from
// some thousand tokens on.
bool cache_is_small(const Pattern& pattern) {
  constexpr int64_t kLong = 2048, kSmall = 8;
  if (pattern.size() < kLong || !pattern.inherits()) return false;
  std::vector<int32_t> cols;
  pattern.row(pattern.size() - 1, cols);
  return static_cast<int64_t>(cols.size()) * kSmall <= pattern.size();
}

}  // namespace

Pattern read_pattern(config::Table& table, const std::string& fallback,
                     const BlockDefaults& defaults) {
  const std::string spec = table.get("pattern", fallback);
  try {
    return Pattern(spec, defaults.length);
  } catch (const Error& error) {
    throw Error(table.name("pattern") + ": " + error.what());
  }
}

std::pair<Tensor, Tensor> row_list(const Pattern& pattern) {
  const Csr rows = to_csr(pattern);
  return {torch::tensor(rows.row_ptr, torch::kInt64), torch::tensor(rows.cols, torch::kInt32)};
}

ops::PatternArg PatternRows::at(int64_t length) {
  if (length != length_) {
    row_ptr_ = cols_ = Tensor();
    const Pattern pattern = pattern_.on(length);
    if (pattern.reads_file() || (list_is_small(pattern) && !cache_is_small(pattern))) {
      std::tie(row_ptr_, cols_) = row_list(pattern);
    }
    length_ = length;
  }
  if (!row_ptr_.defined()) return pattern_.spec();
  return {row_ptr_, cols_};
}

ops::PatternArg PatternRows::at(int64_t time, const Packing& packing) {
  // The longest sequence differs between batches; rows for a longer one start with the same rows.
  return at(packing ? std::max(length_, packing.longest(time)) : time);
}

}  // namespace hopmix::nn
