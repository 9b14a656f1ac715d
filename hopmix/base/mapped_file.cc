#include "hopmix/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "hopmix/base/error.h"

namespace hopmix {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto fail = [&](int reason) {
    return Error("cannot read '" + path.string() + "': " + std::strerror(reason));
  };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw fail(errno);
  const std::shared_ptr<void> close(nullptr, [fd](void*) { ::close(fd); });

  struct stat status {};
  if (::fstat(fd, &status) != 0) throw fail(errno);
  if (S_ISDIR(status.st_mode)) throw fail(EISDIR);
  if (!S_ISREG(status.st_mode)) throw fail(ENODEV);  // a pipe has no pages
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) throw fail(errno);
  data_ = std::shared_ptr<const char>(
      static_cast<const char*>(data),
      [size = size_](const char* begin) { ::munmap(const_cast<char*>(begin), size); });
}

}  // namespace hopmix
