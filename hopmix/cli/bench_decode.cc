#include "hopmix/cli/bench_decode.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "hopmix/base/files.h"
#include "hopmix/base/status_line.h"
#include "hopmix/bench/decode_reads.h"
#include "hopmix/bench/machine.h"
#include "hopmix/train/interrupt.h"

namespace hopmix::cli {

constexpr int64_t kPromptLength = 1024;

void run_bench_decode(const bench::DecodeShape& shape, const bench::Settings& settings,
                      const std::string& json, const std::string& plot) {
  const nlohmann::ordered_json machine = bench::describe_machine();
  std::vector<bench::DecodeResult> results;
  std::vector<bench::PromptResult> prompts;
  std::vector<bench::ReadResult> models, matrices;
  double seconds = 0;
  bool interrupted = false;
  {
    const train::InterruptGuard interrupt;
    StatusLine status;
    const auto report = [&](const std::string& what) {
      status.show(format_duration(status.seconds()) + "  " + what);
    };
    const bench::Hooks hooks = {.stop = [&] { return interrupt.interrupted(); }, .report = report};
    results = bench::measure_decoding(bench::decode_cases(), shape, settings, hooks);
    if (!interrupt.interrupted()) {
      prompts =
          bench::measure_prompts(bench::decode_cases(), shape, kPromptLength, settings, hooks);
    }
    if (!interrupt.interrupted()) {
      models = bench::measure_model_steps(bench::decode_cases(), kPromptLength, settings, hooks);
    }
    if (!interrupt.interrupted()) matrices = bench::measure_matrix_steps(settings, hooks);
    interrupted = interrupt.interrupted();
    seconds = status.seconds();
  }
  if (interrupted) {
    std::fprintf(stderr, "stopped\n");
    throw CLI::RuntimeError(130);
  }
  std::printf("%s%s%s%s%s, one sequence, %lld heads of %lld, %d thread%s, medians; took %s.\n",
              bench::decode_tables(results).c_str(), bench::prompt_table(prompts).c_str(),
              bench::read_table(models, "4 layers of width 256, " + std::to_string(kPromptLength) +
                                            " tokens of context: weights and state")
                  .c_str(),
              bench::read_table(matrices, "one token of an operator: state").c_str(),
              machine["cpu"].get<std::string>().c_str(), static_cast<long long>(shape.heads),
              static_cast<long long>(shape.width), settings.threads,
              settings.threads == 1 ? "" : "s", format_duration(seconds).c_str());
  std::fflush(stdout);
  if (!json.empty()) {
    const nlohmann::ordered_json document = {{"suite", kDecoding},
                                             {"machine", machine},
                                             {"settings",
                                              {{"dtype", "float32"},
                                               {"threads", settings.threads},
                                               {"heads", shape.heads},
                                               {"width", shape.width}}},
                                             {"seconds", seconds},
                                             {"results", bench::to_json(results)},
                                             {"prompts", bench::to_json(prompts)},
                                             {"models", bench::to_json(models)},
                                             {"matrix_steps", bench::to_json(matrices)}};
    write_file(json, document.dump(1) + "\n");
  }
  if (!plot.empty()) bench::plot_decoding(results, plot);
}

}  // namespace hopmix::cli
