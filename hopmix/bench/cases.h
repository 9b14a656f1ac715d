// What `hopmix bench` can time: the operators of hopmix and their peers in PyTorch, in one list.
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

/// What a case computes at one shape: `forward` of `inputs`, each of which gets a gradient. It
/// gives [B,T,H,D], a peer of PyTorch [B,H,T,D].
struct Problem {
  std::vector<Tensor> inputs;
  std::function<Tensor(const std::vector<Tensor>&)> forward;
};

/// How a case's memory and time grow, and with that the length at which it is left out.
enum class Growth {
  kReads,            // with the reads of its pattern: no limit
  kCoefficients,     // memory for a coefficient a read
  kQuadraticTime,    // every pair of tokens
  kQuadraticMemory,  // matrices of length by length
};

struct Traits {
  Growth growth = Growth::kReads;
  bool is_peer = false;        // of PyTorch: what the others are compared with
  bool heads_first = false;    // takes and gives [B,H,T,D]
  bool by_default = true;      // without being named
  bool on_the_fly = false;     // rows are made as they are read; a list is made before otherwise
  bool includes_self = false;  // a token reads itself, beyond its pattern
};

struct Case : Traits {
  std::string name;      // "glr_attention k^2+1"
  std::string group;     // "glr_attention"
  std::string pattern;   // "k^2+1"; "" if it has none
  std::string computes;  // for people
  Problem (*make)(const Shape& shape, const Case& which) = nullptr;

  /// Longest sequence it is timed at; `limit_reason` says why.
  int64_t longest() const;
  const char* limit_reason() const;
  /// Rows that are read for one head of one sequence of `length` tokens; 0 without a pattern.
  int64_t reads(int64_t length) const;
  /// Whether its time goes into fetching single rows, so that bytes read say something of it.
  bool gathers() const { return !pattern.empty() && pattern != "dense"; }
};

/// The names of the cases that others are compared with.
inline constexpr const char* kAttention = "sdpa";
inline constexpr const char* kDenseSolve = "dense_solve";
/// The group of the sweep to a million tokens.
inline constexpr const char* kLong = "long";

/// Every case.
const std::vector<Case>& cases();

/// Those that `names` (of cases or groups) select, in the order of the list; all that are
/// by_default if there are none. Throws Error for an unknown name, with the nearest.
std::vector<Case> select_cases(const std::vector<std::string>& names);

/// The problem of `which` at `shape`, with inputs of `dtype` that are the same in every call.
Problem make_problem(const Case& which, const Shape& shape, at::ScalarType dtype);

}  // namespace hopmix::bench
