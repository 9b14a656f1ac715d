#include "hopmix/analysis/pareto_plot.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <sstream>

#include "hopmix/analysis/gnuplot.h"
#include "hopmix/base/error.h"
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

TEST(ParetoPlot, WhatHasNoPathIsLeftOut) {
  const PlottedPattern apart{"blocks(8)", 3.5, 7, std::nullopt, std::nullopt};
  const PlottedPattern copies{"random(9,1)", 9, 60, std::nullopt, 1.8};
  EXPECT_THROW(pareto_script({apart}, "t"), Error);
  EXPECT_THROW(pareto_width({apart}), Error);
  const std::string script = pareto_script({apart, copies}, "t");
  EXPECT_EQ(pareto_width({apart, copies}), pareto_width({{"2^k", 9, 60, 4.5, std::nullopt}}));
  EXPECT_EQ(script.find("mean hops"), std::string::npos);
  EXPECT_EQ(script.find("blocks(8)"), std::string::npos);
  EXPECT_NE(script.find("'congestion'"), std::string::npos);
}

// Five digits would push the axis label off the plot.
TEST(ParetoPlot, LargeTicsAreShort) {
  const std::string script =
      pareto_script({{"window(1)", 1, 1, 33333, {}}, {"2^k", 18, 131072, 8.5, {}}}, "t");
  EXPECT_NE(script.find("'5000' 5000, '10k' 10000, '20k' 20000"), std::string::npos) << script;
}

TEST(ParetoPlot, GnuplotDrawsIt) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "pareto.svg";
  std::vector<PlottedPattern> one = {{"2^k", 9, 512, 4.5, 1.0}};
  for (const auto& points : {crowd(), one}) {
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
