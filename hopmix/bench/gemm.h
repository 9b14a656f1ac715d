// Compares the matrix product engines of ops/engines.h with torch.mm.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hopmix/bench/measure.h"

namespace hopmix::bench {

/// A product [m, k] x [k, n] in float32 on one thread.
struct GemmResult {
  int64_t m = 0, n = 0, k = 0;
  std::string engine;         // or "torch.mm"
  std::vector<double> times;  // seconds, by repetition
  double seconds = 0;         // their median

  double gflops() const { return 2e-9 * static_cast<double>(m * n * k) / seconds; }
};

/// The products of blocks, chunks, heads and linear maps, by every engine available here,
/// interleaved at random. Returns none if stopped.
std::vector<GemmResult> measure_gemm(const Settings& settings, const Hooks& hooks);

/// A table with a row per product and a column per engine.
std::string gemm_table(const std::vector<GemmResult>& results);

nlohmann::ordered_json to_json(const GemmResult& result);

}  // namespace hopmix::bench
