#include "hopmix/decode/state_file.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "hopmix/base/error.h"
#include "hopmix/base/mix_bits.h"
#include "hopmix/train/safetensors.h"

namespace hopmix::decode {
namespace {

constexpr const char *kFormat = "hopmix", *kFormatValue = "state 1";

std::string prefix(size_t block) { return std::to_string(block) + '.'; }

class Hash {
 public:
  void add(const void* data, size_t size) {
    value_ = mix_bits(value_ + size);
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + at, std::min(sizeof(word), size - at));
      value_ = mix_bits(value_ ^ word);
    }
  }
  void add(const std::string& text) { add(text.data(), text.size()); }

  std::string hex() const {
    char digits[17];
    std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(value_));
    return digits;
  }

 private:
  uint64_t value_ = 0;
};

// The number that `json` is, if it is a whole one of 64 bits.
std::optional<int64_t> whole_number(const nlohmann::json& json) {
  const bool fits =
      json.is_number_integer() && (!json.is_number_unsigned() || json.get<uint64_t>() <= INT64_MAX);
  return fits ? std::optional(json.get<int64_t>()) : std::nullopt;
}

nlohmann::json parsed(const std::string& text) {
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// The tensors of block `b` under their own names, taken out of `tensors`.
std::map<std::string, torch::Tensor> take_block(size_t b,
                                                std::map<std::string, torch::Tensor>& tensors) {
  std::map<std::string, torch::Tensor> taken;
  const std::string start = prefix(b);
  for (auto it = tensors.lower_bound(start); it != tensors.end() && it->first.starts_with(start);
       it = tensors.erase(it)) {
    taken[it->first.substr(start.size())] = it->second;
  }
  return taken;
}

}  // namespace

std::string fingerprint(const nn::LanguageModel& model, const std::string& config) {
  Hash hash;
  hash.add(config);
  for (const auto& item : model.named_parameters()) {
    hash.add(item.key());
    const torch::Tensor value = item.value().detach().cpu().contiguous();
    hash.add(value.const_data_ptr(), value.nbytes());
  }
  return hash.hex();
}

void save_session(const std::filesystem::path& path, const Session& session,
                  const std::string& fingerprint) {
  std::map<std::string, torch::Tensor> tensors;
  for (size_t b = 0; b < session.state.blocks.size(); ++b) {
    for (const auto& [name, tensor] : session.state.blocks[b].tensors) {
      tensors[prefix(b) + name] = tensor;
    }
  }
  train::write_safetensors(path, tensors,
                           {{kFormat, kFormatValue},
                            {"model", fingerprint},
                            {"position", std::to_string(session.state.position())},
                            {"unread", nlohmann::json(session.unread).dump()}});
}

Session load_session(const std::filesystem::path& path, const nn::LanguageModel& model,
                     const std::string& fingerprint) {
  train::SafetensorsFile file = train::read_safetensors(path);
  const auto bad = [&](const std::string& what) {
    return Error("'" + path.string() + "' " + what);
  };
  const auto entry = [&](const char* name) { return file.metadata[name]; };
  if (entry(kFormat) != kFormatValue) throw bad("is not a hopmix state file");
  if (entry("model") != fingerprint) {
    throw bad("was saved by a different model: fingerprint " + entry("model") + ", expected " +
              fingerprint + " (config and weights must match)");
  }
  Session session;
  const std::optional<int64_t> position = whole_number(parsed(entry("position")));
  const nlohmann::json unread = parsed(entry("unread"));
  bool numbers = position && *position >= 0 && unread.is_array();
  for (const nlohmann::json& token : unread) {
    const std::optional<int64_t> number = whole_number(token);
    numbers = numbers && number;
    if (number) session.unread.push_back(*number);
  }
  if (!numbers) {
    throw bad("is damaged: position = '" + entry("position") + "', unread = '" + entry("unread") +
              "' must be whole numbers");
  }
  const int64_t vocabulary = model.config().task.vocabulary;
  for (const int64_t token : session.unread) {
    if (token >= 0 && token < vocabulary) continue;
    throw bad("is damaged: unread token " + std::to_string(token) + " must be from 0 to " +
              std::to_string(vocabulary - 1));
  }
  session.state = model.initial_state(1);
  for (size_t b = 0; b < session.state.blocks.size(); ++b) {
    session.state.blocks[b] = {*position, take_block(b, file.tensors)};
  }
  if (!file.tensors.empty()) {
    throw bad("is damaged: tensor '" + file.tensors.begin()->first +
              "' belongs to no block of the model");
  }
  try {
    model.check_state(session.state);
  } catch (const Error& error) {
    throw bad("is damaged: it does not hold the state of " + std::to_string(*position) +
              " tokens: " + error.what());
  }
  for (size_t b = 0; b < session.state.blocks.size(); ++b) {
    for (const auto& [name, tensor] : session.state.blocks[b].tensors) {
      if (!tensor.is_floating_point() || tensor.isfinite().all().item<bool>()) continue;
      throw bad("is damaged: tensor '" + prefix(b) + name + "' has a number that is not finite");
    }
  }
  return session;
}

}  // namespace hopmix::decode
