// The rows of a pattern as operators take them, remembered between calls of one length.
#pragma once

#include <string>

#include "hopmix/nn/mixer.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {

/// Hands out index lists for short sequences (written once, read by every head and batch) and the
/// spec itself for long ones, where the list would outweigh the data.
class PatternRows {
 public:
  static constexpr int64_t kLongestList = 16384;

  explicit PatternRows(std::string spec) : spec_(std::move(spec)) {}

  /// Rows for sequences of `length` tokens. Throws (c10::ValueError) on a malformed spec.
  ops::PatternArg at(int64_t length);

 private:
  std::string spec_;
  int64_t length_ = -1;
  Tensor row_ptr_, cols_;
};

}  // namespace hopmix::nn
