#include <cstdio>
#include <nlohmann/json.hpp>

#include "hopmix/base/text_table.h"
#include "hopmix/cli/commands.h"
#include "hopmix/nn/registry.h"

namespace hopmix::cli {
namespace {

constexpr int64_t kTokens = 1024;  // length at which state bytes are listed

int64_t default_state_bytes(const nn::MixerEntry& entry) {
  const nn::BlockDefaults defaults;
  toml::table keys;
  if (entry.reads_mem) {
    keys.insert("mem", "cache");
    toml::table of_publisher = keys;
    config::Table table(of_publisher);
    nn::find_mixer("attention").read(table, defaults);
  }
  config::Table table(keys);
  return entry.read(table, defaults).build()->state_bytes(kTokens);
}

void print_table() {
  std::vector<std::vector<std::string>> rows;
  for (const nn::MixerEntry& entry : nn::mixers()) {
    rows.push_back({entry.name, entry.equation, entry.reads, entry.cache,
                    std::to_string(default_state_bytes(entry)), entry.source});
  }
  std::printf(
      "%s\nReads and cache (in vectors) are per token; n: tokens so far, w: window, S_i: row i of "
      "the pattern S.\n"
      "State bytes: one sequence after %lld tokens, width %lld, float32, default keys. For mura, "
      "topk_access, hysparse and retrieved_recurrence, they exclude the state of the attention "
      "whose cache the mixer reads.\n",
      text_table({"mixer", "equation", "reads", "cache", "state bytes", "source"}, rows,
                 {true, true, true, true, false, true})
          .c_str(),
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
  CLI::App* command = app.add_subcommand(
      "mixers", "List every mixer: equation, reads, cache and state per token, source");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON");
  command->footer("Example:\n  hopmix mixers --json");
  command->callback([json] { *json ? print_json() : print_table(); });
}

}  // namespace hopmix::cli
