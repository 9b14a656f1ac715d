// Atomic file writes, and whole-file reads.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace hopmix {

/// Writes `path` through `path.tmp` and a rename. The bytes reach the disk (fsync) before the
/// rename, so a crash, a full disk or an interrupt leaves the old file intact. Of two writers of a
/// path, in one process or in two, one waits for the other. Follows symbolic links and keeps the
/// old file's permissions; writes through what is not a regular file, such as a device or a pipe.
/// Throws Error naming the path and the system's reason, and removes the temporary file.
void write_file(const std::filesystem::path& path, std::string_view bytes);

/// The same for content too large to hold twice: calls `write` with a sink, which it calls once per
/// piece.
using Sink = std::function<void(const void* data, size_t size)>;
void write_file(const std::filesystem::path& path, const std::function<void(const Sink&)>& write);

/// Removes from `folder` the temporary files of writers that were killed, those of files whose name
/// ends with `ending`.
void remove_abandoned(const std::filesystem::path& folder, std::string_view ending);

/// Reads the whole file. Reads a pipe to its end, up to 1 GiB, and a device up to 1 MiB. Throws
/// Error naming the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

/// The same for standard input.
std::string read_stdin();

}  // namespace hopmix
