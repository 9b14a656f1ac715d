// Atomic file writes, and whole-file reads.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace hopmix {

/// Writes `path` through `path.tmp` and a rename. The bytes reach the disk (fsync) before the
/// rename, so a crash, a full disk or an interrupt leaves the old file intact. Throws Error naming
/// the path and the system's reason, and removes the temporary file.
void write_file(const std::filesystem::path& path, std::string_view bytes);

/// The same for content too large to hold twice: calls `write` with a sink, which it calls once per
/// piece.
using Sink = std::function<void(const void* data, size_t size)>;
void write_file(const std::filesystem::path& path, const std::function<void(const Sink&)>& write);

/// Reads the whole file. Throws Error naming the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

}  // namespace hopmix
