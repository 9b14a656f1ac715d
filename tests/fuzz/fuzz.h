// What the fuzz targets share. A target is a function of some bytes that libFuzzer calls with ever new ones; it may throw
// nothing, and CHECK ends the process where a property does not hold.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "hopmix/base/error.h"

namespace hopmix::fuzz {

inline void check(bool holds, const char* what, const char* file, int line) {
  if (holds) return;
  std::fprintf(stderr, "%s:%d: %s does not hold\n", file, line, what);
  std::abort();
}
#define CHECK(condition) ::hopmix::fuzz::check(condition, #condition, __FILE__, __LINE__)

/// Numbers from the front of the input, text from its rest. Reads zeros past the end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(reinterpret_cast<const char*>(data), size) {}

  uint8_t byte() {
    if (data_.empty()) return 0;
    const auto x = static_cast<uint8_t>(data_[0]);
    data_.remove_prefix(1);
    return x;
  }

  /// In [least, most].
  int64_t number(int64_t least, int64_t most) {
    const int64_t x = byte() << 8 | byte();
    return least + x % (most - least + 1);
  }

  template <typename List>
  const auto& one_of(const List& list) {
    return list[static_cast<size_t>(number(0, static_cast<int64_t>(std::size(list)) - 1))];
  }

  std::string_view rest() const { return data_; }

 private:
  std::string_view data_;
};

/// A file of this process, in memory, with these bytes.
inline std::filesystem::path file_of(std::string_view bytes, const char* suffix = "") {
  static const std::filesystem::path folder = std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp";
  const auto path = folder / ("hopmix-fuzz-" + std::to_string(getpid()) + suffix);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

/// The error's message must be one line that says something.
inline void check_message(const Error& error) {
  const std::string_view what = error.what();
  CHECK(!what.empty());
  CHECK(what.find('\n') == std::string_view::npos);
}

}  // namespace hopmix::fuzz
