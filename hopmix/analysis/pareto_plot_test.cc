#include "hopmix/analysis/pareto_plot.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <sstream>

#include "hopmix/analysis/gnuplot.h"
#include "hopmix/base/files.h"

namespace hopmix {
namespace {

std::vector<PlottedPattern> crowd() {
  std::vector<PlottedPattern> points;
  for (int k = 0; k < 14; ++k) {
    points.push_back({"pattern(" + std::to_string(k) + ")", 5 + 0.4 * k, 10.0 + k, 4 - 0.1 * k,
                      k % 2 == 0 ? std::optional<double>(2 + k) : std::nullopt});
  }
  return points;
}

struct Label {
  std::string text;
  double x, y;  // pixels
};

std::vector<Label> labels_of(const std::string& script, double width) {
  std::vector<Label> labels;
  std::istringstream in(script);
  for (std::string line; std::getline(in, line);) {
    char text[64];
    double x = 0, y = 0;
    if (std::sscanf(line.c_str(), "set label '%63[^']' at screen %lf,%lf", text, &x, &y) == 3) {
      labels.push_back({text, x * width, y * kParetoHeight});
    }
  }
  return labels;
}

TEST(ParetoPlot, LabelsDoNotOverlap) {
  const std::vector<PlottedPattern> points = crowd();
  const std::vector<Label> labels = labels_of(pareto_script(points, "t"), pareto_width(points));
  ASSERT_EQ(labels.size(), 14u + 7u);
  for (size_t a = 0; a < labels.size(); ++a) {
    EXPECT_GT(labels[a].x, 0);
    EXPECT_LT(labels[a].x, pareto_width(points));
    for (size_t b = 0; b < a; ++b) {
      const double half =
          7.2 * static_cast<double>(labels[a].text.size() + labels[b].text.size()) / 2;
      const bool apart = std::abs(labels[a].x - labels[b].x) >= half ||
                         std::abs(labels[a].y - labels[b].y) >= 14 - 1e-3;
      EXPECT_TRUE(apart) << labels[a].text << " " << labels[b].text;
    }
  }
}

TEST(ParetoPlot, OnePanelWithoutCongestion) {
  std::vector<PlottedPattern> points = crowd();
  const int both = pareto_width(points);
  for (PlottedPattern& point : points) point.congestion.reset();
  EXPECT_LT(pareto_width(points), both);
  EXPECT_EQ(pareto_script(points, "t").find("'congestion'"), std::string::npos);
}

TEST(ParetoPlot, GnuplotDrawsIt) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "pareto.svg";
  std::vector<PlottedPattern> one = {{"2^k", 9, 512, 4.5, 1.0}};
  std::vector<PlottedPattern> none = {{"blocks(8)", 3.5, 7, std::nullopt, std::nullopt}};
  for (const auto& points : {crowd(), one, none}) {
    plot(pareto_script(points, "it's 2^k"), file, pareto_width(points), kParetoHeight);
    const std::string svg = read_file(file);
    EXPECT_NE(svg.find("it's 2^k"), std::string::npos);
    for (const PlottedPattern& point : points) {
      if (point.mean_hops) {
        EXPECT_NE(svg.find(point.label), std::string::npos) << point.label;
      }
    }
  }
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace hopmix
