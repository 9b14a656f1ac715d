#include "hopmix/bench/gemm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include "hopmix/base/text_table.h"
#include "hopmix/bench/interleave.h"
#include "hopmix/ops/engines.h"

namespace hopmix::bench {
namespace {

constexpr int kRepetitions = 11;

struct Sizes {
  int64_t m, n, k;
};

// Blocks and chunks; linear maps of one token, sixteen tokens and a block of rows.
constexpr Sizes kProducts[] = {{64, 64, 64},     {16, 64, 64},     {16, 16, 64}, {128, 128, 128},
                               {2048, 384, 128}, {2048, 128, 256}, {1, 64, 64},  {1, 768, 512},
                               {16, 768, 512},   {64, 512, 512}};

std::string label(const GemmResult& result) {
  return std::to_string(result.m) + " x " + std::to_string(result.n) + " x " +
         std::to_string(result.k);
}

}  // namespace

std::vector<GemmResult> measure_gemm(const Settings& settings, const Hooks& hooks) {
  at::set_num_threads(1);
  const int repetitions = settings.repetitions.value_or(kRepetitions);
  std::vector<GemmResult> results;
  for (const auto& [m, n, k] : kProducts) {
    if (hooks.stop && hooks.stop()) return {};
    at::Tensor a = at::rand({m, k}), b = at::rand({k, n}), c = at::zeros({m, n});
    if (hooks.report) hooks.report(label({m, n, k, "", {}, 0}));
    std::vector<Work> works;
    const size_t first = results.size();
    for (const kernels::GemmEngine& engine : ops::gemm_engines()) {
      works.push_back({.run =
                           [=, from = a.const_data_ptr<float>(), by = b.const_data_ptr<float>(),
                            to = c.mutable_data_ptr<float>()] {
                             engine.f32(m, n, k, from, k, by, n, to, n, /*add=*/false);
                           },
                       .repetitions = repetitions});
      results.push_back({m, n, k, engine.name, {}, 0});
    }
    works.push_back({.run = [&] { at::mm_out(c, a, b); }, .repetitions = repetitions});
    results.push_back({m, n, k, "torch.mm", {}, 0});
    const auto times = time_interleaved(works, {.stop = hooks.stop});
    for (const kernels::GemmEngine& engine : ops::gemm_engines()) {
      if (engine.release != nullptr) engine.release();
    }
    for (size_t i = 0; i < times.size(); ++i) {
      results[first + i].times = times[i];
      results[first + i].seconds = median(times[i]);
    }
  }
  return hooks.stop && hooks.stop() ? std::vector<GemmResult>() : results;
}

std::string gemm_table(const std::vector<GemmResult>& results) {
  std::vector<std::string> head = {"GFlop/s, m x n x k"};
  std::vector<std::vector<std::string>> rows;
  for (const GemmResult& result : results) {
    if (rows.empty() || rows.back()[0] != label(result)) rows.push_back({label(result)});
    if (rows.size() == 1) head.push_back(result.engine);
    rows.back().push_back(fixed(result.gflops(), 1));
  }
  return rows.empty() ? "" : text_table(head, rows) + "\n";
}

nlohmann::ordered_json to_json(const GemmResult& result) {
  return {{"m", result.m},
          {"n", result.n},
          {"k", result.k},
          {"engine", result.engine},
          {"seconds", result.seconds},
          {"times", result.times},
          {"gflops", result.gflops()}};
}

}  // namespace hopmix::bench
