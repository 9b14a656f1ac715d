#include "hopmix/base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "hopmix/base/error.h"

namespace hopmix {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemporary = ".tmp";
constexpr mode_t kPermissions = 0644, kPermissionBits = 07777;

[[noreturn]] void fail(const char* verb, const fs::path& path, int reason) {
  throw Error(std::string("cannot ") + verb + " '" + path.string() + "': " + std::strerror(reason));
}

// An open file descriptor, closed on destruction.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_;
};

// What `path` names, through symbolic links; nothing if it names nothing.
std::optional<struct stat> status_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return status;
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

void write_all(int fd, const void* data, size_t size, const fs::path& path) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::write(fd, at, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", path, errno);
    at += n;
    size -= static_cast<size_t>(n);
  }
}

// Waits for the file's other writer. A file system without locks has no such protection.
void lock(int fd) {
  while (::flock(fd, LOCK_EX) != 0 && errno == EINTR) {
  }
}

// Opens the empty file `temporary` for one writer, who holds its lock: a killed writer's file is
// used again, and one that another writer renamed in the meantime is not.
Descriptor open_temporary(const fs::path& temporary, mode_t permissions, const fs::path& path) {
  for (;;) {
    Descriptor file(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kPermissions));
    // A link under this name is no file of ours.
    if (!file.open() && errno == ELOOP && ::unlink(temporary.c_str()) == 0) continue;
    if (!file.open()) fail("write", path, errno);
    lock(file.get());
    struct stat opened {};
    if (::fstat(file.get(), &opened) != 0) fail("write", path, errno);
    const std::optional<struct stat> named = status_of(temporary);
    if (!named || !same_file(opened, *named)) continue;
    if (::ftruncate(file.get(), 0) != 0) fail("write", path, errno);
    if (permissions != kPermissions) ::fchmod(file.get(), permissions);
    return file;
  }
}

// The file that writing to `path` creates or replaces: where its symbolic links lead.
fs::path target_of(const fs::path& path) {
  constexpr int kMostLinks = 40;  // Linux's own limit
  fs::path target = path;
  std::error_code error;
  for (int links = 0; links < kMostLinks && fs::is_symlink(target, error); ++links) {
    const fs::path next = fs::read_symlink(target, error);
    if (error) break;
    target = target.parent_path() / next;  // an absolute `next` replaces all
  }
  return target;
}

void write_through(const fs::path& path, const std::function<void(const Sink&)>& write) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
  if (!file.open()) fail("write", path, errno);
  write([&](const void* data, size_t size) { write_all(file.get(), data, size, path); });
}

// Reads to the end. What is not a regular file may have none, hence a limit.
std::string read_all(int fd, const fs::path& path) {
  constexpr size_t kPiece = size_t{1} << 16, kMostOfPipe = size_t{1} << 30,
                   kMostOfDevice = size_t{1} << 20;
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail("read", path, errno);
  if (S_ISDIR(status.st_mode)) fail("read", path, EISDIR);
  const bool device = S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode);
  const size_t most = S_ISREG(status.st_mode) ? SIZE_MAX : device ? kMostOfDevice : kMostOfPipe;
  std::string bytes;
  if (S_ISREG(status.st_mode)) bytes.reserve(static_cast<size_t>(status.st_size));
  std::vector<char> piece(kPiece);
  for (;;) {
    const ssize_t n = ::read(fd, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read", path, errno);
    if (n == 0) return bytes;
    bytes.append(piece.data(), static_cast<size_t>(n));
    if (bytes.size() > most) {
      throw Error("cannot read '" + path.string() + "': it has no end within " +
                  std::to_string(most >> 20) + " MiB; must be a file");
    }
  }
}

}  // namespace

void write_file(const fs::path& path, const std::function<void(const Sink&)>& write) {
  const std::optional<struct stat> old = status_of(path);
  if (old && !S_ISREG(old->st_mode) && !S_ISDIR(old->st_mode)) return write_through(path, write);
  const fs::path target = target_of(path), temporary = target.string() + kTemporary;
  const mode_t permissions = old ? old->st_mode & kPermissionBits : kPermissions;
  const Descriptor file = open_temporary(temporary, permissions, path);
  try {
    write([&](const void* data, size_t size) { write_all(file.get(), data, size, path); });
    if (::fsync(file.get()) != 0) fail("write", path, errno);
    if (::rename(temporary.c_str(), target.c_str()) != 0) fail("write", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void write_file(const fs::path& path, std::string_view bytes) {
  write_file(path, [&](const Sink& sink) { sink(bytes.data(), bytes.size()); });
}

void remove_abandoned(const fs::path& folder, std::string_view ending) {
  const std::string end = std::string(ending) + kTemporary;
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    if (it->path().filename().string().ends_with(end)) found.push_back(it->path());
  }
  for (const fs::path& path : found) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (file.open() && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
  }
}

std::string read_file(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!file.open()) fail("read", path, errno);
  return read_all(file.get(), path);
}

std::string read_stdin() { return read_all(STDIN_FILENO, "standard input"); }

}  // namespace hopmix
