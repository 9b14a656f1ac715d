// The parts that the attention-like mixers share: token shift, projections into heads, rotary
// positions, one-token softmax.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "hopmix/config/config.h"
#include "hopmix/nn/linear.h"
#include "hopmix/nn/mixer.h"
#include "hopmix/nn/registry.h"

namespace hopmix::nn {

/// Sizes and inputs of a mixer with heads.
struct HeadsConfig {
  int64_t width = 64;       // of the model
  int64_t heads = 4;        // width must be a multiple
  bool token_shift = true;  // project concat(x_i, x_{i-1}) instead of x_i
  bool rope = false;        // rotate q and k by position
  int64_t end = 0;          // most tokens that a sequence may have; 0: any number

  int64_t head_width() const { return width / heads; }
  int64_t input_width() const { return token_shift ? 2 * width : width; }
};

/// The positions of the first tokens of a batch.
class Starts {
 public:
  Starts(int64_t of_all) : positions_{of_all} {}         // NOLINT(google-explicit-constructor)
  explicit Starts(std::span<State* const> of_each_row);  // the next of each sequence
  // 0, of every sequence that is packed in a row too.
  Starts(const Packing& packing)  // NOLINT(google-explicit-constructor)
      : positions_{0}, packing_(packing) {}

  const std::vector<int64_t>& positions() const { return positions_; }  // one, or one a row

  bool shared() const { return positions_.size() == 1 && !packing_; }  // by all rows

  /// The positions of all tokens of rows of `time`, int64 [1 or B,time], and the largest of them.
  Tensor of_tokens(int64_t time) const;
  int64_t last(int64_t time) const;

 private:
  std::vector<int64_t> positions_;
  Packing packing_;
};

/// Reads `heads`, `token_shift` and `rope`, each defaulting to the model's.
HeadsConfig read_heads(config::Table& table, const BlockDefaults& defaults);

/// The same without `rope`, for a mixer that has no q and k to rotate.
HeadsConfig read_heads_without_rope(config::Table& table, const BlockDefaults& defaults);

/// Reads `pattern` and checks it on the model's length.
std::string read_pattern(config::Table& table, const std::string& fallback,
                         const BlockDefaults& defaults);

/// Throws Error unless the sizes fit each other.
void check_heads(const HeadsConfig& config);

/// What the projections of a mixer see: x [B,T,width] -> concat(x_i, x_{i-1}) [B,T,2 width] (x_{-1}
/// = 0 before the first token of a sequence), or x itself without token shift.
Tensor shift_tokens(const HeadsConfig& config, const Tensor& x, const Packing& packing = {});

/// The same for the next tokens of a stream; keeps the last in state["last"] for those to come.
Tensor shift_more_tokens(const HeadsConfig& config, const Tensor& x, State& state);

/// The same for one token [B,width] -> [B,1,input width].
Tensor shift_tokens_step(const HeadsConfig& config, const Tensor& x, State& state);

/// The same for one token of each of these sequences.
Tensor shift_tokens_each(const HeadsConfig& config, const Tensor& x,
                         std::span<State* const> states);

/// Puts the zero x_{-1} into a fresh state.
void init_token_shift(const HeadsConfig& config, int64_t batch, torch::TensorOptions options,
                      State& state);

/// Elements that the token shift adds to the state of a sequence.
inline int64_t token_shift_elements(const HeadsConfig& config) {
  return config.token_shift ? config.width : 0;
}

/// [B,T,H*D] -> [B,T,H,D].
Tensor split_heads(const Tensor& x, int64_t heads);

/// The q, k and v of attention, each [B,T,H,D], from one map to 3 width; `input` [B,T,*] begins at
/// position `start` and q and k are rotated if the config says so.
std::vector<Tensor> project_qkv(Linear& qkv, const HeadsConfig& config, const Tensor& input,
                                const Starts& start);

/// Row b of each, [1,...].
std::vector<Tensor> row_of(const std::vector<Tensor>& parts, size_t b);

/// The angles of rotary positions: pair p of a head of `width` numbers is turned by position *
/// 10000^(-2p/width) (RoFormer, arXiv 2104.09864, equation 34). The first of `time` tokens has
/// position `start`.
struct Turns {
  Turns(int64_t width, int64_t time, const Starts& start, at::ScalarType type);

  Tensor cos, sin;  // [1 or B,time,width / 2]
};

/// Turns neighbouring pairs of the last dimension: x [B,T,H,D] with D even.
Tensor apply_rope(const Tensor& x, const Turns& turns);
Tensor apply_rope(const Tensor& x, const Starts& start);

/// apply_rope to some of the parts, which are equally wide.
void rotate(std::vector<Tensor>& parts, std::initializer_list<size_t> which, const Starts& start);

/// Scores of one token's past, q . k / sqrt(D): q [B,H,D], k [B,c,G,D] with H a multiple of G ->
/// [B,H,c].
Tensor token_scores(const Tensor& q, const Tensor& k);

/// Softmax over the past of one token: q [B,H,D], k [B,c,G,D] -> [B,H,c].
Tensor token_softmax(const Tensor& q, const Tensor& k);

/// The same over its past and, last, itself: own [B,1,G,D] -> [B,H,c+1].
Tensor token_softmax(const Tensor& q, const Tensor& k, const Tensor& own);

/// Softmax attention of one token to its past, the sum of the v it weighs: q [B,H,D], k and v
/// [B,c,G,...] -> [B,H,...]; zero when it reads nothing. Of the past only `slots` if given (int32,
/// nn/past.h); then `own` if given, the token itself: its k and v, [B,1,G,...].
Tensor token_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const std::optional<Tensor>& slots = {},
                       const std::optional<std::pair<Tensor, Tensor>>& own = {});

/// Weighted sum over the past: p [B,H,c], v [B,c,G,D] -> [B,H,D]; zero when c = 0.
Tensor token_sum(const Tensor& p, const Tensor& v);

/// The same with the token itself: p [B,H,c+1], own [B,1,G,D].
Tensor token_sum(const Tensor& p, const Tensor& v, const Tensor& own);

}  // namespace hopmix::nn
