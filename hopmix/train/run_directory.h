// Run directories: locking, creating and comparing them, and reading their final score.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "hopmix/config/config.h"

namespace hopmix::train {

/// Held while a process trains a run. The system releases it however the process ends.
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

/// Whether `run` has recorded a step.
bool has_progress(const std::filesystem::path& run);

/// Locks the run directory and creates its config.toml; if one exists, checks that it equals
/// `resolved` and that `resume` is set. Throws Error otherwise. A directory that holds only the
/// first files of a run without progress, `files` among them, counts as empty: what is left of a
/// run that was refused is replaced by the mended one.
RunLock open_run(const std::filesystem::path& run, const toml::table& resolved, bool resume,
                 const std::map<std::string, std::string>& files = {});

/// Writes the files that do not exist yet, by name. Throws Error if an existing one differs: the
/// run was started with a different file.
void keep_files(const std::filesystem::path& run, const std::map<std::string, std::string>& files);

/// The same check, without writing.
void check_files(const std::filesystem::path& run, const std::map<std::string, std::string>& files);

/// The first key whose value differs, as "train.steps: 500 in A, 100 in B"; empty if none does.
std::string first_difference(const toml::table& a, const toml::table& b, const std::string& name_a,
                             const std::string& name_b);

/// The final score in the last line of `run`'s metrics.jsonl; null if the run is incomplete.
nlohmann::json final_score(const std::filesystem::path& run);

}  // namespace hopmix::train
