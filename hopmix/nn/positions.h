// Positions of tokens, and their rotary embedding.
#pragma once

#include <span>
#include <vector>

#include "hopmix/nn/mixer.h"

namespace hopmix::nn {

/// The positions of the first tokens of a batch's rows.
class Starts {
 public:
  Starts(int64_t of_all) : positions_{of_all} {}         // NOLINT(google-explicit-constructor)
  explicit Starts(std::span<State* const> of_each_row);  // each state's position
  // 0, for every packed sequence.
  Starts(const Packing& packing)  // NOLINT(google-explicit-constructor)
      : positions_{0}, packing_(packing) {}

  const std::vector<int64_t>& positions() const { return positions_; }  // one, or one per row

  bool shared() const { return positions_.size() == 1 && !packing_; }  // all rows have the same

  /// The positions of all tokens of rows of `time` tokens, int64 [1 or B,time], and the largest of
  /// them.
  Tensor of_tokens(int64_t time) const;
  int64_t last(int64_t time) const;

 private:
  std::vector<int64_t> positions_;
  Packing packing_;
};

/// The angles of rotary positions: pair p of a head of `width` numbers is rotated by position *
/// 10000^(-2p/width) (RoFormer, arXiv 2104.09864, equation 34). The first of `time` tokens has
/// position `start`.
struct Turns {
  Turns(int64_t width, int64_t time, const Starts& start, at::ScalarType type);

  Tensor cos, sin;  // [1 or B,time,width / 2]
};

/// Rotates neighbouring pairs of the last dimension: x [B,T,H,D], D even.
Tensor apply_rope(const Tensor& x, const Turns& turns);
Tensor apply_rope(const Tensor& x, const Starts& start);

/// apply_rope to some of the parts, all of the same width.
void rotate(std::vector<Tensor>& parts, const std::vector<size_t>& which, const Starts& start);

}  // namespace hopmix::nn
