#include "hopmix/train/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <set>
#include <sstream>
#include <vector>

#include "hopmix/base/files.h"

namespace hopmix::train {

using std::filesystem::path;

namespace {

// What a run writes before its first step, and then.
const std::set<std::string> kFirst = {"config.toml", "inputs.json", "metrics.jsonl"};
const std::set<std::string> kCheckpoint = {"model.safetensors", "optimizer.safetensors",
                                           "state.json"};

// Every value below `node`, by its dotted name; elements of arrays are numbered, as in --set.
void flatten(const toml::node& node, const std::string& name,
             std::map<std::string, std::string>& out) {
  const std::string prefix = name.empty() ? "" : name + ".";
  if (const toml::table* table = node.as_table()) {
    for (const auto& [key, value] : *table) flatten(value, prefix + std::string(key.str()), out);
  } else if (const toml::array* array = node.as_array()) {
    for (size_t i = 0; i < array->size(); ++i) {
      flatten((*array)[i], prefix + std::to_string(i), out);
    }
  } else {
    std::ostringstream text;
    node.visit([&](const auto& value) { text << value; });
    out[name] = text.str();
  }
}

// Whether `file` is a config as open_run writes it, and not one that somebody wrote by hand.
bool is_resolved(const path& file) {
  try {
    const std::string text = read_file(file);
    return config::to_string(config::parse(text, file.string())) == text;
  } catch (const Error&) {
    return false;
  }
}

// Whether `run` is empty, or holds only what is left of a run that was killed or refused before it
// recorded a step: nothing to continue, and nothing to lose.
bool is_new(const path& run, const std::map<std::string, std::string>& files) {
  if (has_progress(run)) return false;
  for (const auto& entry : std::filesystem::directory_iterator(run)) {
    std::string name = entry.path().filename();
    if (name == "config.toml" && !is_resolved(entry.path())) return false;
    if (kFirst.contains(name) || files.contains(name)) continue;
    for (const std::string_view ending : {".tmp", ".next"}) {
      if (name.ends_with(ending)) name.resize(name.size() - ending.size());
    }
    const bool whole = name == entry.path().filename();
    if (whole || !(kFirst.contains(name) || kCheckpoint.contains(name) || files.contains(name))) {
      return false;
    }
  }
  return true;
}

}  // namespace

RunLock::RunLock(const path& run) : fd_(::open(run.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  if (fd_ >= 0) ::close(fd_);
  throw Error("'" + run.string() + "' is in use: another process is training it");
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

bool has_progress(const path& run) {
  std::error_code none;
  const auto metrics = std::filesystem::file_size(run / "metrics.jsonl", none);
  return (!none && metrics > 0) || std::filesystem::exists(run / "state.json");
}

RunLock open_run(const path& run, const toml::table& resolved, bool resume,
                 const std::map<std::string, std::string>& files) {
  const path config = run / "config.toml";
  std::error_code error;
  std::filesystem::create_directories(run, error);
  if (error) throw Error("cannot create '" + run.string() + "': " + error.message());
  RunLock lock(run);  // before looking inside: of two processes that create a run, only one may
  if (is_new(run, files)) {
    const std::filesystem::directory_iterator left(run);
    for (const auto& entry : std::vector(begin(left), end(left))) {
      std::filesystem::remove(entry.path());
    }
    write_file(config, config::to_string(resolved));
    return lock;
  }
  if (!resume) {
    throw Error("'" + run.string() +
                "' exists: use --resume to continue it, or --out DIR to train elsewhere");
  }
  const std::string difference =
      first_difference(config::parse_file(config), resolved, config.string(), "this config");
  if (!difference.empty()) throw Error("cannot resume, the config differs: " + difference);
  return lock;
}

void check_files(const path& run, const std::map<std::string, std::string>& files) {
  for (const auto& [name, bytes] : files) {
    if (!std::filesystem::exists(run / name) || read_file(run / name) == bytes) continue;
    throw Error("'" + (run / name).string() +
                "' differs from the file that this config names: that file changed after the run "
                "began");
  }
}

void keep_files(const path& run, const std::map<std::string, std::string>& files) {
  check_files(run, files);
  for (const auto& [name, bytes] : files) {
    if (!std::filesystem::exists(run / name)) write_file(run / name, bytes);
  }
}

std::string first_difference(const toml::table& a, const toml::table& b, const std::string& name_a,
                             const std::string& name_b) {
  std::map<std::string, std::string> left, right;
  flatten(a, "", left);
  flatten(b, "", right);
  for (const auto* side : {&left, &right}) {
    for (const auto& item : *side) {
      const auto show = [&](const std::map<std::string, std::string>& values) {
        const auto found = values.find(item.first);
        return found == values.end() ? std::string("absent") : found->second;
      };
      if (show(left) != show(right)) {
        return item.first + ": " + show(left) + " in " + name_a + ", " + show(right) + " in " +
               name_b;
      }
    }
  }
  return "";
}

nlohmann::json final_score(const path& run) {
  const path file = run / "metrics.jsonl";
  if (!std::filesystem::exists(file)) return nullptr;
  std::istringstream lines(read_file(file));
  nlohmann::json last;
  for (std::string line; std::getline(lines, line);) {
    last = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  }
  return last.is_object() && last.contains("eval") ? last["eval"] : nlohmann::json(nullptr);
}

}  // namespace hopmix::train
