#include "hopmix/cli/experiment_options.h"

namespace hopmix::cli {

toml::table load_document(const std::filesystem::path& path,
                          const std::vector<std::string>& settings) {
  const bool run = std::filesystem::is_directory(path);
  if (run && !std::filesystem::exists(path / "config.toml")) {
    throw Error("'" + path.string() + "' is not a run directory: config.toml is missing");
  }
  toml::table document = config::parse_file(run ? path / "config.toml" : path);
  for (const std::string& setting : settings) config::set(document, setting);
  return document;
}

}  // namespace hopmix::cli
