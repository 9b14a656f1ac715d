// Memory-mapped files.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

namespace hopmix {

/// The bytes of a file, mapped into memory. The system loads pages when they are touched and drops
/// them when memory is short. Copies share the mapping. The file must not be truncated while it is
/// mapped.
class MappedFile {
 public:
  /// Throws Error naming the path and the system's reason. An empty file gives an empty view.
  explicit MappedFile(const std::filesystem::path& path);

  std::string_view bytes() const { return {data_.get(), size_}; }

 private:
  std::shared_ptr<const char> data_;
  size_t size_ = 0;
};

}  // namespace hopmix
