// The UTF-8 stream and stop strings: how a text is cut does not matter, and the result is what the definition says.
#include <algorithm>
#include <vector>

#include "hopmix/decode/stop_strings.h"
#include "hopmix/decode/utf8_stream.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace hopmix;

// The text in front of the first stop to be completed; of those completed together, the longest.
std::string in_front_of(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t cut = std::string::npos;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) cut = std::min(cut, end - stop.size());
    }
    if (cut != std::string::npos) return text.substr(0, cut);
  }
  return text;
}

template <typename Stream>
std::string in_pieces(Stream stream, std::string_view text, fuzz::Input cuts) {
  std::string result;
  while (!text.empty()) {
    const auto length = std::min<size_t>(text.size(), static_cast<size_t>(cuts.byte()) % 5 + 1);
    result += stream.push(text.substr(0, length));
    text.remove_prefix(length);
  }
  return result + stream.finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  std::vector<std::string> stops;
  const int64_t count = input.number(0, 3);
  for (int64_t n = 0; n < count; ++n) {
    std::string stop(static_cast<size_t>(input.number(1, 4)), 'a');
    for (char& c : stop) c = static_cast<char>(input.byte());
    stops.push_back(stop);
  }
  const std::string text(input.rest());
  if (text.size() > 400) return 0;

  const std::string utf8 = in_pieces(decode::Utf8Stream(), text, input);
  CHECK(utf8 == decode::Utf8Stream().push(text) + [&] {
    decode::Utf8Stream whole;
    whole.push(text);
    return whole.finish();
  }());
  CHECK(!decode::first_bad_utf8(utf8));
  if (!decode::first_bad_utf8(text)) CHECK(utf8 == text);
  CHECK(in_pieces(decode::StopStrings(stops), text, input) == in_front_of(text, stops));
  return 0;
}
