// metrics.jsonl: one JSON object a line, appended as training goes.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

namespace hopmix::train {

class MetricsFile {
 public:
  /// Opens `path` for appending. Lines of steps past `step` are dropped first (a resumed run writes
  /// them again), as are the final score and a last line that was cut short.
  MetricsFile(const std::filesystem::path& path, int64_t step);

  /// Appends one line and hands it to the system. Throws Error when the disk is full.
  void write(const nlohmann::json& line);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace hopmix::train
