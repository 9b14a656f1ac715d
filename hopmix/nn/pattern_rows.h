// The rows of a pattern in the form operators take, cached between calls of the same length.
#pragma once

#include <string>
#include <utility>

#include "hopmix/nn/mixer.h"
#include "hopmix/nn/registry.h"
#include "hopmix/ops/ops.h"
#include "hopmix/pattern/pattern.h"

namespace hopmix::nn {

/// Reads `pattern` on the model's length.
Pattern read_pattern(config::Table& table, const std::string& fallback,
                     const BlockDefaults& defaults);

/// All rows as operators take them: int64 row_ptr [n + 1] and int32 cols.
std::pair<Tensor, Tensor> row_list(const Pattern& pattern);

/// Returns index lists while they are small (built once, read by every head and batch), otherwise
/// the spec itself: `dense` on 16,384 tokens would need a list of half a GB in every layer. Also
/// returns the spec where kernels benefit from knowing it: long sequences of patterns with a small
/// live cache. The rows of a file are always a list, because an operator would read it in each
/// call.
class PatternRows {
 public:
  static constexpr int64_t kLargestList = int64_t{1} << 24;  // bytes

  explicit PatternRows(Pattern pattern) : pattern_(std::move(pattern)) {}

  /// Rows for sequences of `length` tokens. Throws Error if the pattern cannot have that many.
  ops::PatternArg at(int64_t length);

  /// Rows for the sequences packed in a row of `time` tokens: at least those of the longest.
  ops::PatternArg at(int64_t time, const Packing& packing);

 private:
  Pattern pattern_;
  int64_t length_ = -1;
  Tensor row_ptr_, cols_;
};

}  // namespace hopmix::nn
