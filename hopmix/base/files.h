// Files that are written whole or not at all.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace hopmix {

/// Writes `path` by way of `path.tmp`: the bytes reach the disk (fsync) before the rename, so a
/// crash, a full disk or an interrupt leaves the old file as it was. Throws Error naming the path
/// and the system's reason; the temporary is removed.
void write_file(const std::filesystem::path& path, std::string_view bytes);

/// The same for content too large to hold twice: `write` is handed a sink and calls it once for
/// each piece.
using Sink = std::function<void(const void* data, size_t size)>;
void write_file(const std::filesystem::path& path, const std::function<void(const Sink&)>& write);

/// The whole file. Throws Error naming the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

}  // namespace hopmix
