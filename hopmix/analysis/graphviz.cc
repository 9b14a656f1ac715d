#include "hopmix/analysis/graphviz.h"

#include "hopmix/analysis/program.h"
#include "hopmix/base/error.h"

namespace hopmix {

void draw_graph(const std::string& graph, const std::filesystem::path& output) {
  const std::string ending = output.extension().string();
  if (ending != ".svg" && ending != ".png") {
    throw Error("graph file '" + output.string() + "' must end in .svg or .png");
  }
  const Drawn drawn =
      draw({"dot", "-T" + ending.substr(1), "-o", temporary_for(output).string()}, graph, output);
  if (drawn.done) return;
  const std::string line = drawn.messages.substr(0, drawn.messages.find('\n'));
  throw Error("cannot plot '" + output.string() +
              "': dot says: " + (line.empty() ? "no message" : line));
}

}  // namespace hopmix
