// Graphs through the program dot of Graphviz (2.40 or later).
#pragma once

#include <filesystem>
#include <string>

namespace hopmix {

/// Lays out `graph` (Graphviz's language) into `output`, .svg or .png by its ending, whole or not
/// at all. Throws Error naming the file for another ending, a missing dot, a graph that dot refuses
/// (with its message) and a place that cannot be written.
void draw_graph(const std::string& graph, const std::filesystem::path& output);

}  // namespace hopmix
