// glr_attention one token at a time, for decoding: the computation of kernels/rows/glr_attention.h
// with memory for what the pattern still reads. Does not depend on torch: a layer decodes on raw
// pointers (examples/decode_core.cc).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hopmix/pattern/slot_policy.h"

namespace hopmix::kernels {

struct GlrDecoderConfig {
  std::string pattern = "k^2+1";
  int64_t heads = 4, key_width = 16, value_width = 16;  // H, DK, DV
  double scale = 0;                                     // of logits; 0: 1 / sqrt(DK)
  int64_t length = 0;  // tokens of the stream, if that is known (SlotPolicy)
};

/// One token's inputs.
template <typename T>
struct GlrToken {
  const T* q;       // [H, DK]
  const T* k;       // [H, DK]
  const T* v;       // [H, DV]
  const T* gate;    // [H]
  const T* d;       // [H]
  const T* d_self;  // [H]
};

/// One stream; T is float or double. A copy is a fork, which advances independently.
template <typename T>
class GlrDecoder {
 public:
  /// Throws Error on a malformed pattern or a size below 1.
  explicit GlrDecoder(const GlrDecoderConfig& config);

  /// Processes the next token -> y [H, DV]: z_i = (d_i + d_self_i) v_i + gate_i sum_j P_ij z_j, y_i
  /// = z_i - d_i v_i. O(reads H (DK + DV)). Throws Error past a known length.
  void step(const GlrToken<T>& token, T* y);

  int64_t position() const { return position_; }  // tokens so far

  /// Bytes of the stored keys and states.
  int64_t bytes() const { return static_cast<int64_t>((k_.size() + z_.size()) * sizeof(T)); }

 private:
  GlrDecoderConfig config_;
  SlotPolicy slots_;
  int64_t position_ = 0;
  std::vector<T> k_, z_;        // [slots, H, DK], [slots, H, DV]
  std::vector<int32_t> held_;   // [slots], the token in each
  std::vector<int32_t> reads_;  // the slots that the next token reads, by ascending token
  std::vector<T> next_;         // z of the newest token
};

}  // namespace hopmix::kernels
