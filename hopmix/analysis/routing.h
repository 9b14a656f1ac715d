// The copy routing problem (congestion.h): its graph, lightest paths, and routings.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hopmix/pattern/pattern.h"

namespace hopmix {

/// Every c < inputs needs a path along reads from token c + inputs back to token c.
struct CopyProblem {
  Csr reads;           // for at least 2 * inputs tokens
  int64_t inputs = 0;  // n
  int64_t tokens() const { return 2 * inputs; }
};

/// floor(pattern.size() / 2) inputs.
CopyProblem copy_problem(const Pattern& pattern);

/// The tokens from output to input, strictly descending, both ends included.
using Path = std::vector<int32_t>;

/// One unit of flow from an output to its input: shares are positive and sum to 1.
struct Flow {
  std::vector<Path> paths;
  std::vector<double> shares;
};

/// Flow through each token, [tokens].
std::vector<double> loads(const CopyProblem& problem, std::span<const Flow> flows);

/// Finds the lightest paths of a problem, by one sweep over the tokens from c to c + n: O(reads
/// among them).
class PathFinder {
 public:
  /// Keeps a reference to `problem`, which must outlive it.
  explicit PathFinder(const CopyProblem& problem);

  /// The least total weight of the tokens on a path from c + n to c, ends included; infinity if
  /// there is none. `weight` is [tokens] and not negative.
  double weigh(int64_t c, std::span<const double> weight);

  /// A path of that weight for the last call of weigh(), which must have been finite. Among equals,
  /// the path with the shortest last reads.
  Path path() const;

 private:
  const CopyProblem& problem_;
  std::vector<double> distance_;  // [tokens] from c to each token
  int64_t target_ = 0;
};

}  // namespace hopmix
