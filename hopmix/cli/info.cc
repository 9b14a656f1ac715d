#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include "hopmix/cli/commands.h"

namespace hopmix::cli {
namespace {

void info() {
  std::printf("hopmix   %s\n", HOPMIX_VERSION);
  std::printf("torch    %s\n", TORCH_VERSION);
  std::printf("compiler %s\n", __VERSION__);
  std::printf("CPU      %s\n", at::get_cpu_capability().c_str());
  std::printf("threads  %d\n", at::get_num_threads());
  std::printf("CUDA     %s\n", at::hasCUDA() ? "yes" : "no");
}

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("info", "Versions, CPU features in use, threads, whether CUDA");
  command->footer("Example:\n  hopmix info");
  command->callback(info);
}

}  // namespace hopmix::cli
