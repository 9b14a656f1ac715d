// The cases that `hopmix bench` can time: the operators of hopmix and their PyTorch peers, in one
// list.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hopmix::bench {

using at::Tensor;

/// [batch, length, heads, width].
struct Shape {
  int64_t batch = 1, heads = 1, width = 64, length = 0;
  bool operator==(const Shape&) const = default;
};

/// What a case computes at one shape: `forward` of `inputs`, each of which gets a gradient. Returns
/// [B,T,H,D], or [B,H,T,D] for a PyTorch peer.
struct Problem {
  std::vector<Tensor> inputs;
  std::function<Tensor(const std::vector<Tensor>&)> forward;
};

/// How a case's memory and time grow, which limits the length it is timed at.
enum class Growth {
  kReads,            // with the reads of the pattern: no limit
  kCoefficients,     // memory for one coefficient per read
  kQuadraticTime,    // time for every pair of tokens
  kQuadraticMemory,  // memory for length x length matrices
};

struct Traits {
  Growth growth = Growth::kReads;
  bool is_peer = false;        // a PyTorch operator that others are compared with
  bool heads_first = false;    // takes and returns [B,H,T,D]
  bool by_default = true;      // runs without being named
  bool on_the_fly = false;     // rows are generated as they are read, not listed beforehand
  bool includes_self = false;  // a token also reads itself
};

struct Case : Traits {
  std::string name;      // "glr_attention k^2+1"
  std::string group;     // "glr_attention"
  std::string pattern;   // "k^2+1"; "" if it has none
  std::string computes;  // a description
  Problem (*make)(const Shape& shape, const Case& which) = nullptr;

  /// The longest sequence it is timed at; `limit_reason` says why.
  int64_t longest() const;
  const char* limit_reason() const;
  /// Rows read for one head of one sequence of `length` tokens; 0 without a pattern.
  int64_t reads(int64_t length) const;
  /// Whether it spends its time fetching single rows, so that bandwidth is meaningful.
  bool gathers() const { return !pattern.empty() && pattern != "dense"; }
};

/// The names of the peers that others are compared with.
inline constexpr const char* kAttention = "sdpa";
inline constexpr const char* kDenseSolve = "dense_solve";
/// The group that sweeps lengths up to a million tokens.
inline constexpr const char* kLong = "long";

/// All cases.
const std::vector<Case>& cases();

/// The cases selected by `names` (of cases or groups), in list order; without names, all that are
/// by_default. Throws Error for an unknown name, suggesting the nearest.
std::vector<Case> select_cases(const std::vector<std::string>& names);

/// The problem of `which` at `shape`, with the same inputs of `dtype` in every call.
Problem make_problem(const Case& which, const Shape& shape, at::ScalarType dtype);

}  // namespace hopmix::bench
