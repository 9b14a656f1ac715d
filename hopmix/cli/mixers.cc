#include <cstdio>
#include <nlohmann/json.hpp>

#include "hopmix/cli/commands.h"
#include "hopmix/nn/registry.h"

namespace hopmix::cli {
namespace {

constexpr int64_t kTokens = 1024;  // where state bytes are quoted

int64_t default_state_bytes(const nn::MixerEntry& entry) {
  toml::table keys;
  config::Table table(keys);
  return entry.make(table, nn::BlockDefaults{})->state_bytes(kTokens);
}

void print_table() {
  std::printf("%-24s %-58s %-10s %-30s %12s  %s\n", "mixer", "equation", "reads", "cache (vectors)",
              "state bytes", "source");
  for (const nn::MixerEntry& entry : nn::mixers()) {
    std::printf("%-24s %-58s %-10s %-30s %12lld  %s\n", entry.name.c_str(), entry.equation.c_str(),
                entry.reads.c_str(), entry.cache.c_str(),
                static_cast<long long>(default_state_bytes(entry)), entry.source.c_str());
  }
  std::printf(
      "\nreads and cache a token; n: tokens so far, w: window, S_i: row i of the pattern. State "
      "bytes: of one\n"
      "sequence after %lld tokens, width %lld, float32, the mixer's default keys.\n",
      static_cast<long long>(kTokens), static_cast<long long>(nn::BlockDefaults{}.width));
}

void print_json() {
  nlohmann::json list = nlohmann::json::array();
  for (const nn::MixerEntry& entry : nn::mixers()) {
    list.push_back({{"name", entry.name},
                    {"equation", entry.equation},
                    {"reads", entry.reads},
                    {"cache", entry.cache},
                    {"state_bytes", default_state_bytes(entry)},
                    {"source", entry.source}});
  }
  std::printf("%s\n", list.dump(2).c_str());
}

}  // namespace

void add_mixers(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("mixers", "Every mixer: equation, time and cache per token, source");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON");
  command->footer("Example:\n  hopmix mixers --json");
  command->callback([json] { *json ? print_json() : print_table(); });
}

}  // namespace hopmix::cli
