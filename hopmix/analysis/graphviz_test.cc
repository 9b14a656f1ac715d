#include "hopmix/analysis/graphviz.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "hopmix/analysis/render.h"
#include "hopmix/base/files.h"
#include "hopmix/base/testing.h"

namespace hopmix {
namespace {

class Graphviz : public testing::Test {
 protected:
  Graphviz() { std::filesystem::create_directories(folder_); }
  ~Graphviz() override { std::filesystem::remove_all(folder_); }

  std::string error(const std::string& graph, const std::filesystem::path& output) {
    return error_of([&] { draw_graph(graph, output); });
  }

  int files() const {
    return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("hopmix 'graphs' " + std::to_string(getpid()));
};

TEST_F(Graphviz, DrawsByTheEnding) {
  const std::string graph = graphviz(Pattern("2^k", 8));
  draw_graph(graph, folder_ / "a.svg");
  draw_graph(graph, folder_ / "a.png");
  const std::string svg = read_file(folder_ / "a.svg");
  EXPECT_NE(svg.find("<svg"), std::string::npos);
  EXPECT_NE(svg.find("7&#45;&gt;3"), std::string::npos);
  EXPECT_EQ(read_file(folder_ / "a.png").substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(files(), 2);
}

TEST_F(Graphviz, WhatIsWrongIsSaid) {
  EXPECT_EQ(error("digraph {}", folder_ / "a.pdf"),
            "graph file '" + (folder_ / "a.pdf").string() + "' must end in .svg or .png");
  EXPECT_NE(error("no graph", folder_ / "a.svg").find("dot says: "), std::string::npos);
  EXPECT_EQ(
      error("digraph {}", folder_ / "no" / "a.svg"),
      "cannot write '" + (folder_ / "no" / "a.svg").string() + "': No such file or directory");
  EXPECT_EQ(files(), 0);
}

TEST_F(Graphviz, AMissingProgramIsNamed) {
  const std::string path = getenv("PATH");
  setenv("PATH", folder_.c_str(), 1);
  const std::string message = error("digraph {}", folder_ / "a.svg");
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(message, "cannot plot '" + (folder_ / "a.svg").string() +
                         "': the program dot is not installed or not on PATH");
}

}  // namespace
}  // namespace hopmix
