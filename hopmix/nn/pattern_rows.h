// The rows of a pattern in the form operators take, cached between calls of the same length.
#pragma once

#include <string>

#include "hopmix/nn/mixer.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {

/// Returns index lists while they are small (built once, read by every head and batch), otherwise
/// the spec itself: `dense` on 16,384 tokens would need a list of half a GB in every layer. Also
/// returns the spec where kernels benefit from knowing it: long sequences of patterns with a small
/// live cache.
class PatternRows {
 public:
  static constexpr int64_t kLargestList = int64_t{1} << 24;  // bytes

  explicit PatternRows(std::string spec) : spec_(std::move(spec)) {}

  /// Rows for sequences of `length` tokens. Throws Error on a malformed spec.
  ops::PatternArg at(int64_t length);

  /// Rows for the sequences packed in a row of `time` tokens: at least those of the longest.
  ops::PatternArg at(int64_t time, const Packing& packing);

 private:
  std::string spec_;
  int64_t length_ = -1;
  Tensor row_ptr_, cols_;
};

}  // namespace hopmix::nn
