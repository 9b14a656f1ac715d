// metrics.jsonl: one JSON object per line, appended during training.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

namespace hopmix::train {

class MetricsFile {
 public:
  /// Opens `path` for appending. First drops the lines of steps after `step` (a resumed run writes
  /// them again), the final score, and a last line that is incomplete.
  MetricsFile(const std::filesystem::path& path, int64_t step);

  /// Appends one line and flushes it. Throws Error when the disk is full.
  void write(const nlohmann::json& line);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace hopmix::train
