// A run directory from outside: whose it is, whether it is complete.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "hopmix/config/config.h"

namespace hopmix::train {

/// Held while a process trains a run. The system lets go of it however the process ends.
class RunLock {
 public:
  /// Throws Error if another process holds it.
  explicit RunLock(const std::filesystem::path& run);
  RunLock(RunLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RunLock& operator=(RunLock&&) = delete;
  ~RunLock();

 private:
  int fd_;
};

/// Locks the run directory, then makes its config.toml, or checks that the one there is of this
/// resolved config and may be gone on with. Throws Error.
RunLock open_run(const std::filesystem::path& run, const toml::table& resolved, bool resume);

/// Writes the files that are not there yet, by name. Throws Error if one that is there differs: the
/// run was begun with another.
void keep_files(const std::filesystem::path& run, const std::map<std::string, std::string>& files);

/// The first key whose value differs, as "train.steps: 500 in A, 100 in B"; empty if there is none.
std::string first_difference(const toml::table& a, const toml::table& b, const std::string& name_a,
                             const std::string& name_b);

/// The final score that `run`'s metrics.jsonl ends with; null if the run is not complete.
nlohmann::json final_score(const std::filesystem::path& run);

}  // namespace hopmix::train
