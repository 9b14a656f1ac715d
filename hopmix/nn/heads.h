// Shared by the attention-like mixers: token shift, projections into heads, rotary positions,
// one-token softmax.
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
  int64_t width = 64;       // model width
  int64_t heads = 4;        // must divide width
  bool token_shift = true;  // project concat(x_i, x_{i-1}) instead of x_i
  bool rope = false;        // rotate q and k by position
  int64_t end = 0;          // longest sequence; 0: no limit

  int64_t head_width() const { return width / heads; }
  int64_t input_width() const { return token_shift ? 2 * width : width; }
};

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

/// Reads `heads`, `token_shift` and `rope`; the defaults are the model's.
HeadsConfig read_heads(config::Table& table, const BlockDefaults& defaults);

/// The same without `rope`, for a mixer without q and k.
HeadsConfig read_heads_without_rope(config::Table& table, const BlockDefaults& defaults);

/// Reads `pattern` and validates it at the model's length.
std::string read_pattern(config::Table& table, const std::string& fallback,
                         const BlockDefaults& defaults);

/// Throws Error unless the sizes are consistent.
void check_heads(const HeadsConfig& config);

/// The input of a mixer's projections: x [B,T,width] -> concat(x_i, x_{i-1}) [B,T,2 width], with
/// x_{-1} = 0 before the first token of a sequence; without token shift, x itself.
Tensor shift_tokens(const HeadsConfig& config, const Tensor& x, const Packing& packing = {});

/// The same for the next tokens of a stream; keeps the last one in state["last"] for the call
/// after.
Tensor shift_more_tokens(const HeadsConfig& config, const Tensor& x, State& state);

/// The same for one token [B,width] -> [B,1,input width].
Tensor shift_tokens_step(const HeadsConfig& config, const Tensor& x, State& state);

/// The same for one token of each of these sequences.
Tensor shift_tokens_each(const HeadsConfig& config, const Tensor& x,
                         std::span<State* const> states);

/// Adds the zero x_{-1} to a fresh state.
void init_token_shift(const HeadsConfig& config, int64_t batch, torch::TensorOptions options,
                      State& state);

/// Number of elements that the token shift adds to the state of a sequence.
inline int64_t token_shift_elements(const HeadsConfig& config) {
  return config.token_shift ? config.width : 0;
}

/// [B,T,H*D] -> [B,T,H,D].
Tensor split_heads(const Tensor& x, int64_t heads);

/// The q, k and v of attention, each [B,T,H,D], from one map to 3 width. `input` [B,T,*] begins at
/// position `start`; q and k are rotated if the config says so.
std::vector<Tensor> project_qkv(Linear& qkv, const HeadsConfig& config, const Tensor& input,
                                const Starts& start);

/// Row b of each, [1,...].
std::vector<Tensor> row_of(const std::vector<Tensor>& parts, size_t b);

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
void rotate(std::vector<Tensor>& parts, std::initializer_list<size_t> which, const Starts& start);

/// Scores of one token against its past, q . k / sqrt(D): q [B,H,D], k [B,c,G,D] with H a multiple
/// of G -> [B,H,c].
Tensor token_scores(const Tensor& q, const Tensor& k);

/// Softmax over the past of one token: q [B,H,D], k [B,c,G,D] -> [B,H,c].
Tensor token_softmax(const Tensor& q, const Tensor& k);

/// The same over its past and, last, itself: own [B,1,G,D] -> [B,H,c+1].
Tensor token_softmax(const Tensor& q, const Tensor& k, const Tensor& own);

/// Softmax attention of one token to its past: q [B,H,D], k and v [B,c,G,...] -> [B,H,...]; zero if
/// it reads nothing. With `slots` (int32, nn/past.h), reads only those. With `own`, the token's own
/// k and v, [B,1,G,...], also reads itself.
Tensor token_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const std::optional<Tensor>& slots = {},
                       const std::optional<std::pair<Tensor, Tensor>>& own = {});

/// Weighted sum over the past: p [B,H,c], v [B,c,G,D] -> [B,H,D]; zero if c = 0.
Tensor token_sum(const Tensor& p, const Tensor& v);

/// The same with the token itself: p [B,H,c+1], own [B,1,G,D].
Tensor token_sum(const Tensor& p, const Tensor& v, const Tensor& own);

}  // namespace hopmix::nn
