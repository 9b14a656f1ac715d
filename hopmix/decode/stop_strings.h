// Where a text is to end.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hopmix::decode {

/// Passes a text on that comes in pieces until one of `stops` is complete, and nothing of that one.
/// What may turn out to be the beginning of one is held back. How the text is cut into pieces
/// changes nothing.
class StopStrings {
 public:
  /// Throws Error if one is empty.
  explicit StopStrings(std::vector<std::string> stops);

  /// What of the text so far may now be shown. After the stop, nothing.
  std::string push(std::string_view text);

  /// What was held back, once no more text comes.
  std::string finish();

  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace hopmix::decode
