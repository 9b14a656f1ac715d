// TOML configs: an error of one line, or a document that is written and parsed back the same; an override changes it or is
// an error.
#include "hopmix/config/config.h"

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hopmix;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t end = text.find('\n');
  try {
    toml::table document = config::parse(text, "fuzz");
    const std::string written = config::to_string(document);
    CHECK(config::to_string(config::parse(written, "written")) == written);
    config::set(document, text.substr(0, end));
  } catch (const Error& error) {
    fuzz::check_message(error);
  }
  return 0;
}
