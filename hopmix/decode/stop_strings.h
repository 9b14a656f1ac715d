// Ends a text at a stop string.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hopmix::decode {

/// Forwards a text that arrives in pieces, up to but not including the first of `stops` to be
/// completed. Text that may turn out to begin a stop string is held back. The result does not
/// depend on how the text is cut into pieces.
class StopStrings {
 public:
  /// Throws Error if a stop string is empty.
  explicit StopStrings(std::vector<std::string> stops);

  /// Adds `text` and returns what may be shown now: nothing once stopped.
  std::string push(std::string_view text);

  /// Returns the text still held back, once no more text comes.
  std::string finish();

  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace hopmix::decode
