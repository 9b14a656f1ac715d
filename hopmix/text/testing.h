// For tests only.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "hopmix/base/files.h"

namespace hopmix::text {

/// Lines of made-up words, some of them frequent, for training a tokenizer.
inline std::string made_up_text(size_t lines, uint64_t seed = 0) {
  const std::vector<std::string> words = {"the",  "king",  "speaks", "softly", "the",     "queen",
                                          "café", "and",   "of",     "night",  "wherein", "a",
                                          "the",  "jewel", "hangs",  "bright", "upon",    "ox"};
  std::mt19937_64 random(seed);
  std::string text;
  for (size_t i = 0; i < lines; ++i) {
    for (uint64_t words_left = 3 + random() % 8; words_left > 0; --words_left) {
      text += words[random() % words.size()] + (words_left > 1 ? " " : ".\n");
    }
  }
  return text;
}

/// A temporary folder for a test.
class FolderTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("hopmix-text-" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, std::string_view bytes) {
    std::filesystem::create_directories((folder_ / name).parent_path());
    write_file(folder_ / name, bytes);
    return folder_ / name;
  }

  std::filesystem::path folder_;
};

}  // namespace hopmix::text
