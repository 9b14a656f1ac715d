#include "hopmix/base/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "hopmix/base/error.h"

namespace hopmix {
namespace {

[[noreturn]] void fail(const char* verb, const std::filesystem::path& path, int reason) {
  throw Error(std::string("cannot ") + verb + " '" + path.string() + "': " + std::strerror(reason));
}

// An open file descriptor, closed on destruction.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

void write_all(int fd, const void* data, size_t size, const std::filesystem::path& path) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::write(fd, at, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", path, errno);
    at += n;
    size -= static_cast<size_t>(n);
  }
}

}  // namespace

void write_file(const std::filesystem::path& path, const std::function<void(const Sink&)>& write) {
  const std::filesystem::path temporary = path.string() + ".tmp";
  try {
    Descriptor file{::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    if (file.fd < 0) fail("write", path, errno);
    write([&](const void* data, size_t size) { write_all(file.fd, data, size, path); });
    if (::fsync(file.fd) != 0) fail("write", path, errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail("write", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  write_file(path, [&](const Sink& sink) { sink(bytes.data(), bytes.size()); });
}

std::string read_file(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) fail("read", path, EISDIR);
  std::ifstream in(path, std::ios::binary);
  if (!in) fail("read", path, errno);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return std::move(bytes).str();
}

}  // namespace hopmix
