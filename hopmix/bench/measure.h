// Runs benchmark cases at one shape after another and compares each with its peers.
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
  std::optional<int> repetitions;  // default: 11, fewer for slow cases
  bool forward = true, backward = true;
};

/// One case at one shape in one direction. Numbers that do not apply are absent.
struct Result {
  Case which;
  Shape shape;
  bool backward = false;  // forward and backward; otherwise forward only
  std::vector<double> times;
  double seconds = 0;                  // their median
  int64_t reads = 0;                   // rows fetched by the forward, all heads and sequences
  std::optional<int64_t> extra_bytes;  // peak memory beyond inputs and outputs
  std::optional<double> over_attention, over_dense_solve;  // the peer's seconds over ours

  double tokens_per_second() const;
  /// One row of k and one of z per read, in float32.
  std::optional<double> useful_bytes() const;
  std::optional<double> useful_gb_per_s() const;
  /// The size of k and z of one head of one sequence.
  int64_t working_set_bytes() const;
  /// extra_bytes in n x n float32 matrices, one per head and sequence.
  std::optional<double> extra_matrices() const;
};

/// A case that was requested but not timed.
struct LeftOut {
  std::string name;
  int64_t length = 0, longest = 0;
  std::string reason;
};

struct Hooks {
  std::function<bool()> stop;                      // called between runs; true stops
  std::function<void(const std::string&)> report;  // called with the current activity
};

/// "forward", "forward+backward".
const char* direction_name(bool backward);

/// Times `cases` at `shape`, with the repetitions of all cases and directions interleaved at
/// random. Adds to `results` and `left_out`, or adds nothing if stopped.
void measure(const std::vector<Case>& cases, const Shape& shape, const Settings& settings,
             const Hooks& hooks, std::vector<Result>& results, std::vector<LeftOut>& left_out);

/// Sets over_attention and over_dense_solve of every result whose peer was timed at the same shape
/// and in the same direction.
void compare_with_peers(std::vector<Result>& results);

}  // namespace hopmix::bench
