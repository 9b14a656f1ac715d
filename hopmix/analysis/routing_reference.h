// For tests: random copy problems, and their paths and optima by enumeration.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "hopmix/analysis/routing.h"

namespace hopmix {

// Token i reads i - 1 (all but `loose` times in 100) and each earlier one `percent` times in 100.
inline CopyProblem random_problem(int64_t inputs, int percent, int loose, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto chance = [&](int of_100) { return static_cast<int>(random() % 100) < of_100; };
  CopyProblem problem;
  problem.inputs = inputs;
  problem.reads.row_ptr = {0};
  for (int64_t i = 0; i < 2 * inputs; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      if (j == i - 1 ? !chance(loose) : chance(percent)) {
        problem.reads.cols.push_back(static_cast<int32_t>(j));
      }
    }
    problem.reads.row_ptr.push_back(static_cast<int64_t>(problem.reads.cols.size()));
  }
  return problem;
}

inline bool is_read(const CopyProblem& problem, int64_t i, int64_t j) {
  const auto begin = problem.reads.cols.begin();
  return std::find(begin + problem.reads.row_ptr[i], begin + problem.reads.row_ptr[i + 1], j) !=
         begin + problem.reads.row_ptr[i + 1];
}

inline void extend_paths(const CopyProblem& problem, int64_t c, Path& path,
                         std::vector<Path>& paths) {
  const int32_t at = path.back();
  if (at == c) paths.push_back(path);
  for (int32_t j = at - 1; j >= c; --j) {
    if (!is_read(problem, at, j)) continue;
    path.push_back(j);
    extend_paths(problem, c, path, paths);
    path.pop_back();
  }
}

// Every path from c + n to c.
inline std::vector<Path> all_paths(const CopyProblem& problem, int64_t c) {
  std::vector<Path> paths;
  Path path = {static_cast<int32_t>(c + problem.inputs)};
  extend_paths(problem, c, path, paths);
  return paths;
}

// The definition of a valid path.
inline bool is_path(const CopyProblem& problem, int64_t c, const Path& path) {
  if (path.empty() || path.front() != c + problem.inputs || path.back() != c) return false;
  for (size_t k = 0; k + 1 < path.size(); ++k) {
    if (!is_read(problem, path[k], path[k + 1])) return false;
  }
  return true;
}

// The largest number of paths through one token.
inline int64_t most_through_one(const CopyProblem& problem, const std::vector<Path>& paths) {
  std::vector<int64_t> load(problem.tokens());
  for (const Path& path : paths) {
    for (const int32_t v : path) ++load[v];
  }
  return load.empty() ? 0 : *std::max_element(load.begin(), load.end());
}

// The least congestion of an integral routing, by trying all; for very few inputs.
inline int64_t best_of_all(const CopyProblem& problem, std::vector<Path> chosen = {}) {
  const int64_t c = static_cast<int64_t>(chosen.size());
  if (c == problem.inputs) return most_through_one(problem, chosen);
  int64_t best = problem.inputs + 1;
  chosen.emplace_back();
  for (const Path& path : all_paths(problem, c)) {
    chosen.back() = path;
    best = std::min(best, best_of_all(problem, chosen));
  }
  return best;
}

}  // namespace hopmix
