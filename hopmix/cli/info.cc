#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include "hopmix/cli/commands.h"
#include "hopmix/ops/engines.h"

namespace hopmix::cli {
namespace {

// "highway (also onednn, mkl; HOPMIX_GEMM names another)"
std::string describe_products() {
  const std::string used = ops::chosen_gemm_engine();
  std::string others;
  for (const kernels::GemmEngine& engine : ops::gemm_engines()) {
    if (engine.name != used) others += (others.empty() ? "also " : ", ") + std::string(engine.name);
  }
  return used + (others.empty() ? "" : " (" + others + "; HOPMIX_GEMM names another)");
}

void info() {
  const std::string products = describe_products();  // may throw, so before printing anything
  std::printf("hopmix   %s\n", HOPMIX_VERSION);
  std::printf("torch    %s\n", TORCH_VERSION);
  std::printf("compiler %s\n", __VERSION__);
  std::printf("CPU      %s\n", at::get_cpu_capability().c_str());
  std::printf("threads  %d\n", at::get_num_threads());
  std::printf("products %s\n", products.c_str());
  std::printf("CUDA     %s\n", at::hasCUDA() ? "yes" : "no");
}

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "info", "Show versions, CPU features, threads and the matrix product engine");
  command->footer("Example:\n  hopmix info");
  command->callback(info);
}

}  // namespace hopmix::cli
