// Runs the cases of a benchmark at one shape after another, each against its peers.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hopmix/bench/cases.h"
#include "hopmix/bench/statistics.h"

namespace hopmix::bench {

struct Settings {
  at::ScalarType dtype = at::kFloat;
  int threads = 1;
  std::optional<int> repetitions;  // of everything; else 11, fewer of what is slow
  bool forward = true, backward = true;
};

/// One case at one shape in one direction. A number that does not apply is absent.
struct Result {
  Case which;
  Shape shape;
  bool backward = false;  // forward and backward; else forward alone
  std::vector<double> times;
  double seconds = 0;                  // their median
  int64_t reads = 0;                   // rows that the forward fetches, all heads and sequences
  std::optional<int64_t> extra_bytes;  // most memory at a time beyond inputs and outputs
  std::optional<double> over_attention, over_dense_solve;  // peer's seconds over ours

  double tokens_per_second() const;
  /// A row of k and one of z for each read, in float32.
  std::optional<double> useful_bytes() const;
  std::optional<double> useful_gb_per_s() const;
  /// k and z of one head of one sequence.
  int64_t working_set_bytes() const;
  /// In n by n matrices of float32, one for each head of each sequence.
  std::optional<double> extra_matrices() const;
};

/// What was asked for and not timed.
struct LeftOut {
  std::string name;
  int64_t length = 0, longest = 0;
  std::string reason;
};

struct Hooks {
  std::function<bool()> stop;                      // asked between runs
  std::function<void(const std::string&)> report;  // told what is being done
};

/// "forward", "forward+backward".
const char* direction_name(bool backward);

/// Times `cases` at `shape`: repetitions of all cases and directions are mixed at random. Adds to
/// `results` and `left_out`; adds nothing if stopped.
void measure(const std::vector<Case>& cases, const Shape& shape, const Settings& settings,
             const Hooks& hooks, std::vector<Result>& results, std::vector<LeftOut>& left_out);

/// Fills over_attention and over_dense_solve of every result whose peer was timed at the same shape
/// and in the same direction.
void compare_with_peers(std::vector<Result>& results);

}  // namespace hopmix::bench
