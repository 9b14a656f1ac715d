#include "hopmix/decode/stop_strings.h"

#include <algorithm>
#include <utility>

#include "hopmix/base/error.h"

namespace hopmix::decode {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) throw Error("stop = '': must not be empty");
  }
}

std::string StopStrings::push(std::string_view text) {
  if (stopped_) return "";
  held_ += text;
  size_t end = 0, complete = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    const size_t last = at + stop.size();
    if (last < complete || (last == complete && at < end)) end = at;
    complete = std::min(complete, last);
  }
  stopped_ = complete != std::string::npos;
  if (!stopped_) {
    end = held_.size();
    for (const std::string& stop : stops_) {
      // The longest suffix of the text that is a prefix of `stop`.
      size_t begun = std::min(stop.size() - 1, held_.size());
      while (!held_.ends_with(std::string_view(stop).substr(0, begun))) --begun;
      end = std::min(end, held_.size() - begun);
    }
  }
  std::string shown = held_.substr(0, end);
  held_.erase(0, stopped_ ? held_.size() : end);
  return shown;
}

std::string StopStrings::finish() { return std::exchange(held_, ""); }

}  // namespace hopmix::decode
