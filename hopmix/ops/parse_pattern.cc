#include <c10/util/Exception.h>

#include <mutex>

#include "hopmix/base/error.h"
#include "hopmix/ops/checks.h"

namespace hopmix::ops {
namespace {

// Parsing takes about 20 us, longer than an operator on a short text. The dispatcher carries a spec
// as text, so what was parsed is kept here, each on the most tokens so far.
Pattern parsed(std::string_view spec, int64_t n) {
  constexpr size_t kMost = 16;
  static std::mutex mutex;
  static std::vector<Pattern> known;  // the oldest first
  {
    const std::lock_guard lock(mutex);
    for (const Pattern& pattern : known) {
      if (pattern.spec() == spec && n <= pattern.size()) return pattern.on(n);
    }
  }
  Pattern pattern(spec, n);
  if (pattern.reads_file()) return pattern;  // the file may change
  const std::lock_guard lock(mutex);
  std::erase_if(known, [&](const Pattern& other) { return other.spec() == pattern.spec(); });
  if (known.size() == kMost) known.erase(known.begin());
  known.push_back(pattern);
  return pattern;
}

}  // namespace

Pattern parse_pattern(const std::string& op, std::string_view spec, int64_t n) {
  try {
    return parsed(spec, n);
  } catch (const Error& error) {
    TORCH_CHECK_VALUE(false, op, ": ", error.what());
  }
}

}  // namespace hopmix::ops
