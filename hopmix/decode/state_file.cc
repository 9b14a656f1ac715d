#include "hopmix/decode/state_file.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

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

// Whether `tensor` has the shape of the initial state, except for the number of tokens held.
bool fits(const torch::Tensor& tensor, const torch::Tensor& initial) {
  if (tensor.scalar_type() != initial.scalar_type() || tensor.dim() != initial.dim()) return false;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) != initial.size(d) && (d != 1 || initial.size(1) != 0)) return false;
  }
  return true;
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
  session.state = model.initial_state(1);
  int64_t position = -1;
  try {
    position = nlohmann::json::parse(entry("position")).get<int64_t>();
    session.unread = nlohmann::json::parse(entry("unread")).get<std::vector<int64_t>>();
  } catch (const nlohmann::json::exception&) {
    throw bad("is damaged: position = '" + entry("position") + "', unread = '" + entry("unread") +
              "' must be numbers");
  }
  int64_t bytes = 0;
  for (size_t b = 0; b < session.state.blocks.size(); ++b) {
    nn::State& state = session.state.blocks[b];
    state.position = position;
    for (auto& [name, tensor] : state.tensors) {
      const auto found = file.tensors.find(prefix(b) + name);
      if (found == file.tensors.end() || !fits(found->second, tensor)) {
        throw bad("is damaged: tensor '" + prefix(b) + name +
                  "' is missing or has the wrong type or shape");
      }
    }
    state.tensors.clear();
    for (auto it = file.tensors.lower_bound(prefix(b));
         it != file.tensors.end() && it->first.starts_with(prefix(b)); ++it) {
      state.tensors[it->first.substr(prefix(b).size())] = it->second;
    }
    bytes += state.bytes();
  }
  const int64_t vocabulary = model.config().task.vocabulary;
  const bool known = std::all_of(session.unread.begin(), session.unread.end(),
                                 [&](int64_t token) { return token >= 0 && token < vocabulary; });
  if (position < 0 || !known || bytes != model.state_bytes(position)) {
    throw bad("is damaged: it does not hold the state of " + std::to_string(position) + " tokens");
  }
  file.tensors.clear();
  return session;
}

}  // namespace hopmix::decode
