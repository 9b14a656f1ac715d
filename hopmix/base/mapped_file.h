// Files read where they lie.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

namespace hopmix {

/// A file's bytes as memory: pages come from the disk when they are touched, and go when memory is
/// short. A value: copies share the mapping. The file must not be cut short meanwhile.
class MappedFile {
 public:
  /// Throws Error naming the path and the system's reason. An empty file is an empty view.
  explicit MappedFile(const std::filesystem::path& path);

  std::string_view bytes() const { return {data_.get(), size_}; }

 private:
  std::shared_ptr<const char> data_;
  size_t size_ = 0;
};

}  // namespace hopmix
