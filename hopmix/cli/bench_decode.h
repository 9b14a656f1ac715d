// `hopmix bench decode`.
#pragma once

#include <string>

#include "hopmix/bench/decode.h"

namespace hopmix::cli {

inline constexpr const char* kDecoding =
    "decode";  // times decoding steps of layers, not an operator

/// Measures, prints, and writes `json` and `plot` unless they are empty. On an interrupt writes
/// nothing and exits with 130.
void run_bench_decode(const bench::DecodeShape& shape, const bench::Settings& settings,
                      const std::string& json, const std::string& plot);

}  // namespace hopmix::cli
