#include "hopmix/train/inputs.h"

#include <nlohmann/json.hpp>

#include "hopmix/base/files.h"
#include "hopmix/pattern/dag_files.h"

namespace hopmix::train {
namespace {

using Json = nlohmann::json;
using std::filesystem::path;

constexpr const char* kName = "inputs.json";

Digest digest_of(const std::string& bytes) {
  ContentHash hash;
  hash.add(bytes);
  return {static_cast<int64_t>(bytes.size()), hash.value()};
}

void collect(const toml::node& node, const std::string& key, Inputs& inputs) {
  if (const toml::table* table = node.as_table()) {
    for (const auto& [name, value] : *table) {
      collect(value, key + "." + std::string(name.str()), inputs);
    }
  } else if (const toml::array* array = node.as_array()) {
    for (size_t i = 0; i < array->size(); ++i) {
      collect((*array)[i], key + "." + std::to_string(i), inputs);
    }
  } else if (node.is_string() && key.ends_with(".pattern")) {
    const std::string& spec = node.as_string()->get();
    const std::vector<std::string> files = dag_files(spec);
    if (files.empty()) return;
    std::string all;
    for (const std::string& file : files) all += read_file(file);
    inputs[key] = {spec, digest_of(all)};
  }
}

Json to_json(const Input& input) {
  return {{"name", input.name}, {"bytes", input.digest.bytes}, {"hash", hex(input.digest.hash)}};
}

std::string describe(const Json& recorded) {
  return recorded.value("bytes", Json()).dump() + " bytes with hash " +
         recorded.value("hash", Json()).dump();
}

// What `run` has recorded; null if it has no file.
Json read(const path& run) {
  const path file = run / kName;
  if (!std::filesystem::exists(file)) return nullptr;
  Json recorded = Json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
  if (!recorded.is_object()) throw Error("'" + file.string() + "' is damaged: it is not JSON");
  return recorded;
}

}  // namespace

Inputs pattern_inputs(const toml::table& model) {
  Inputs inputs;
  collect(model, "model", inputs);
  return inputs;
}

void check_inputs(const path& run, const Inputs& inputs) {
  const Json recorded = read(run);
  if (recorded.is_null()) return;
  for (const auto& [key, input] : inputs) {
    const Json then = recorded.value(key, Json());
    const Json now = to_json(input);
    if (!then.is_object() || then.value("name", Json()) != now["name"] || then == now) continue;
    throw Error(key + " = '" + input.name + "' has changed since '" + run.string() +
                "' was started: it had " + describe(then) + ", but now has " + describe(now));
  }
}

void keep_inputs(const path& run, const Inputs& inputs) {
  check_inputs(run, inputs);
  if (inputs.empty() || !read(run).is_null()) return;
  Json json = Json::object();
  for (const auto& [key, input] : inputs) json[key] = to_json(input);
  write_file(run / kName, json.dump(2) + "\n");
}

}  // namespace hopmix::train
