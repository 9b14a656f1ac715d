#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "hopmix/base/files.h"
#include "hopmix/base/testing.h"
#include "hopmix/cli/commands.h"
#include "hopmix/cli/testing.h"

namespace hopmix::cli {
namespace {

// The output of the command.
std::string pattern(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "pattern");
  return output_of(add_pattern, arguments);
}

std::string error(const std::vector<std::string>& arguments) {
  return error_of([&] { pattern(arguments); });
}

TEST(PatternCommand, PrintsThePictureAndASummary) {
  EXPECT_EQ(
      pattern({"2^k", "-n", "4"}),
      "○\n■ ○\n■ ■ ○\n· ■ ■ ○\n"
      "2^k, 4 tokens: 1.25 reads per token (2 at most); cache 2 at most; hops 2 at most, 1.17 "
      "on average\n");
}

TEST(PatternCommand, StatsInWords) {
  EXPECT_EQ(pattern({"cached(2^k)", "-n", "300", "--stats"}),
            "pattern       cached(2^k)\ntokens        300\nreads         2189, 7.30 per token, 9 "
            "at most\n"
            "cache         9 tokens at most\nhops          8 at most, 3.77 on average\n");
  EXPECT_NE(pattern({"blocks(2)", "-n", "4", "--stats"})
                .find("hops          unbounded, 4 pairs have no path"),
            std::string::npos);
  EXPECT_NE(pattern({"fenwick", "-n", "32769", "--stats"}).find("not computed beyond 32768"),
            std::string::npos);
}

TEST(PatternCommand, StatsAsJson) {
  const auto json =
      nlohmann::ordered_json::parse(pattern({"k^2+1", "-n", "300", "--stats", "--json"}));
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"pattern", "n", "reads_total", "reads_max",
                                            "cache_peak", "diameter", "mean_hops", "unreachable"}));
  EXPECT_EQ(json["pattern"], "k^2+1");
  EXPECT_EQ(json["n"], 300);
  EXPECT_EQ(json["reads_total"], 3597);
  EXPECT_EQ(json["reads_max"], 18);
  EXPECT_EQ(json["cache_peak"], 267);
  EXPECT_EQ(json["diameter"], 4);
  EXPECT_NEAR(json["mean_hops"].get<double>(), 2.50, 0.005);
  EXPECT_EQ(json["unreachable"], 0);

  const auto apart = nlohmann::json::parse(pattern({"blocks(2)", "-n", "4", "--json"}));
  EXPECT_TRUE(apart["diameter"].is_null());
  EXPECT_TRUE(apart["mean_hops"].is_null());
  EXPECT_EQ(apart["unreachable"], 4);
}

TEST(PatternCommand, WritesFiles) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / ("hopmix-cli-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string csr = folder / "p.mtx", dot = folder / "p.dot", svg = folder / "p.svg";
  EXPECT_EQ(pattern({"2^k", "-n", "16", "--csr", csr, "--dot", dot, "--plot", svg}), "");
  EXPECT_NE(read_file(dot).find("15 -> 7"), std::string::npos);
  EXPECT_NE(read_file(svg).find("<svg"), std::string::npos);
  const std::string again = pattern({"dag(" + csr + ")", "-n", "16"});
  const std::string direct = pattern({"2^k", "-n", "16"});
  EXPECT_EQ(again.substr(0, again.find("dag")), direct.substr(0, direct.find("2^k")));
  EXPECT_EQ(error({"2^k", "--plot", folder / "p.gif"}),
            "plot file '" + (folder / "p.gif").string() + "' must end in .svg or .png");
  std::filesystem::remove_all(folder);
  EXPECT_NE(error({"2^k", "--csr", csr}).find(csr), std::string::npos);
}

TEST(PatternCommand, DrawsCacheHopsAndGraph) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / ("hopmix-pictures-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string cache = folder / "c.svg", hops = folder / "h.png", graph = folder / "g.svg";
  EXPECT_EQ(pattern({"cached(2^k)", "-n", "16", "--plot-cache", cache, "--plot-hops", hops,
                     "--graph", graph}),
            "");
  EXPECT_NE(read_file(cache).find("kept for later tokens"), std::string::npos);
  EXPECT_EQ(read_file(hops).substr(1, 3), "PNG");
  EXPECT_NE(read_file(graph).find("1&#45;&gt;0"), std::string::npos);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(error({"2^k", "-n", "513", "--graph", graph}),
            "n 513 must be at most 512 for --graph; --dot has no limit");
}

TEST(PatternCommand, BadInputIsAnError) {
  EXPECT_EQ(error({"window(0)"}),
            "pattern 'window(0)': argument at character 8: 0 must be at least 1");
  EXPECT_EQ(error({"2^k", "-n", "-1"}), "n -1 must be from 0 to 2147483647");
  EXPECT_THROW(pattern({}), CLI::ParseError);
  EXPECT_THROW(pattern({"2^k", "--stat"}), CLI::ParseError);
  EXPECT_THROW(pattern({"2^k", "-n", "x"}), CLI::ParseError);
}

}  // namespace
}  // namespace hopmix::cli
