// Graphs with Graphviz's dot (2.40 or later).
#pragma once

#include <filesystem>
#include <string>

namespace hopmix {

/// Lays out `graph` (in Graphviz's language) and writes it to `output`, which must end in .svg or
/// .png, atomically. Throws Error naming the file if the ending is wrong, dot is missing or rejects
/// the graph (with its message), or the file cannot be written.
void draw_graph(const std::string& graph, const std::filesystem::path& output);

}  // namespace hopmix
