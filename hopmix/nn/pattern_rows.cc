#include "hopmix/nn/pattern_rows.h"

namespace hopmix::nn {

ops::PatternArg PatternRows::at(int64_t length) {
  if (length > kLongestList) return spec_;
  if (length != length_) {
    std::tie(row_ptr_, cols_) = ops::pattern(spec_, length);
    length_ = length;
  }
  return {row_ptr_, cols_};
}

}  // namespace hopmix::nn
