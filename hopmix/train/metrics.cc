#include "hopmix/train/metrics.h"

#include <cerrno>
#include <cstring>
#include <sstream>

#include "hopmix/base/error.h"
#include "hopmix/base/files.h"

namespace hopmix::train {

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t step) : path_(path) {
  std::string kept;
  if (std::filesystem::exists(path)) {
    std::istringstream lines(read_file(path));
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json read = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!read.is_object() || read.contains("eval")) break;
      const nlohmann::json at = read.value("step", nlohmann::json());
      if (!at.is_number_integer() || at > step) break;
      kept += line + "\n";
    }
  }
  write_file(path, kept);
  file_.reset(std::fopen(path.c_str(), "a"));
  if (!file_) throw Error("cannot write '" + path.string() + "': " + std::strerror(errno));
}

void MetricsFile::write(const nlohmann::json& line) {
  const std::string text = line.dump() + "\n";
  const bool wrote = std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size();
  if (!wrote || std::fflush(file_.get()) != 0) {
    throw Error("cannot write '" + path_.string() + "': " + std::strerror(errno));
  }
}

}  // namespace hopmix::train
