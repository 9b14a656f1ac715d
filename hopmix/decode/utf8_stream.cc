#include "hopmix/decode/utf8_stream.h"

#include "hopmix/base/utf8.h"

namespace hopmix::decode {
namespace {

constexpr const char* kReplacement = "\uFFFD";

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  std::string whole;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Utf8Character character = first_utf8_character(rest);
    if (character.state == Utf8Character::kCut) break;
    if (character.state == Utf8Character::kWhole) {
      whole += rest.substr(0, character.length);
    } else {
      whole += kReplacement;
    }
    rest.remove_prefix(character.length);
  }
  held_.erase(0, held_.size() - rest.size());
  return whole;
}

std::string Utf8Stream::finish() {
  const bool cut = !held_.empty();
  held_.clear();
  return cut ? kReplacement : "";
}

}  // namespace hopmix::decode
