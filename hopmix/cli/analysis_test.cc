// The output of the commands compare, design, capacity and reproduce propositions.
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "hopmix/base/files.h"
#include "hopmix/base/testing.h"
#include "hopmix/base/text_table.h"
#include "hopmix/cli/commands.h"
#include "hopmix/cli/propositions.h"
#include "hopmix/cli/testing.h"

namespace hopmix::cli {
namespace {

using nlohmann::ordered_json;

std::string error(void (*add)(CLI::App&), const std::vector<std::string>& arguments) {
  return error_of([&] { output_of(add, arguments); });
}

std::vector<std::string> keys(const ordered_json& json) {
  std::vector<std::string> list;
  for (const auto& [key, value] : json.items()) list.push_back(key);
  return list;
}

TEST(TextTable, AlignsItsColumns) {
  EXPECT_EQ(text_table({"name", "n"}, {{"a", "10"}, {"long name", "7"}}),
            "name        n\na          10\nlong name   7\n");
  EXPECT_EQ(text_table({"n", "name"}, {{"10", "a"}}, {false, true}), " n  name\n10  a\n");
}

TEST(CompareCommand, JsonAsAgreed) {
  const ordered_json list = ordered_json::parse(output_of(
      add_compare, {"compare", "2^k", "cached(k^2+1)", "blocks(8)", "-n", "64", "--json"}));
  ASSERT_EQ(list.size(), 3u);
  for (const ordered_json& item : list) {
    EXPECT_EQ(keys(item),
              (std::vector<std::string>{"pattern", "n", "reads_total", "reads_max", "cache_peak",
                                        "diameter", "mean_hops", "congestion", "growth"}));
    EXPECT_EQ(item["n"], 64);
    for (const char* key : {"lower", "cut", "fractional", "upper"}) {
      EXPECT_TRUE(item["congestion"].contains(key)) << key;
    }
  }
  EXPECT_EQ(list[0]["pattern"], "2^k");
  EXPECT_EQ(list[0]["growth"]["reads"], "log n");
  EXPECT_EQ(list[0]["diameter"], 6);  // 63 is 111111 in binary
  EXPECT_EQ(list[0]["reads_max"], 6);
  // 32 inputs: the values of docs/congestion.md.
  EXPECT_NEAR(list[0]["congestion"]["fractional"].get<double>(), 1, 1e-6);
  EXPECT_NEAR(list[1]["congestion"]["fractional"].get<double>(), 7, 1e-6);
  EXPECT_EQ(list[1]["congestion"]["gap"], 0);
  EXPECT_TRUE(list[2]["diameter"].is_null());
  EXPECT_TRUE(list[2]["mean_hops"].is_null());
  EXPECT_TRUE(list[2]["congestion"]["fractional"].is_null());
}

TEST(CompareCommand, TableInWords) {
  const std::string text =
      output_of(add_compare, {"compare", "window(1)", "blocks(2)", "-n", "64", "--no-congestion"});
  EXPECT_EQ(text.substr(0, text.find("blocks")),
            "pattern    reads/token  max  growth  cache  growth  diameter   hops  growth\n"
            "window(1)         0.98    1       1      1       1        63  21.67  n^0.97\n");
  EXPECT_NE(text.find("none: some token has no path"), std::string::npos);
  EXPECT_EQ(text.find("C:"), std::string::npos);
  EXPECT_NE(output_of(add_compare, {"compare", "cached(2^k)", "-n", "16400", "--no-congestion"})
                .find("95% confidence"),
            std::string::npos);
}

TEST(CompareCommand, DrawsThePicture) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) /
                                     ("hopmix-compare-" + std::to_string(getpid()) + ".svg");
  output_of(add_compare, {"compare", "2^k", "cached(2^k)", "-n", "32", "--plot", file});
  const std::string svg = read_file(file);
  EXPECT_NE(svg.find("mean hops"), std::string::npos);
  EXPECT_NE(svg.find("congestion"), std::string::npos);
  std::filesystem::remove(file);
}

TEST(CompareCommand, APictureThatCannotBeDrawnLeavesTheTable) {
  CLI::App app;
  add_compare(app);
  testing::internal::CaptureStdout();
  EXPECT_THROW(app.parse("compare 2^k -n 32 --plot p.gif"), Error);
  std::fflush(stdout);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("2^k"), std::string::npos);
  EXPECT_EQ(error(add_compare, {"compare", "blocks(2)", "-n", "8", "--plot", "p.svg"}),
            "nothing to plot: no pattern has a path between all of its tokens");
}

// Past 4096 tokens.
TEST(CompareCommand, ManyTokensHaveBoundsAlone) {
  const ordered_json routing = ordered_json::parse(
      output_of(add_compare, {"compare", "cached(2^k)", "-n", "4098", "--json"}))[0]["congestion"];
  EXPECT_GT(routing["cut"], routing["lower"]);
  EXPECT_EQ(routing["proven"], routing["cut"]);
  EXPECT_TRUE(routing["fractional"].is_null());
  EXPECT_TRUE(routing["upper"].is_null());
}

TEST(CompareCommand, BadInputIsAnError) {
  EXPECT_EQ(error(add_compare, {"compare", "2^k", "window(0)", "-n", "8"}),
            "pattern 'window(0)': argument at character 8: 0 must be at least 1");
  EXPECT_THROW(output_of(add_compare, {"compare"}), CLI::ParseError);
  EXPECT_THROW(output_of(add_compare, {"compare", "2^k", "-n", "1"}), CLI::ParseError);
}

TEST(DesignCommand, JsonAndTableAgree) {
  const std::vector<std::string> arguments = {"design",  "-n", "100",           "--reads", "7",
                                              "--cache", "8",  "--evaluations", "50"};
  std::vector<std::string> with_json = arguments;
  with_json.push_back("--json");
  const ordered_json json = ordered_json::parse(output_of(add_design, with_json));
  EXPECT_EQ(json["n"], 100);
  EXPECT_EQ(json["reads"], 7);
  EXPECT_EQ(json["minimize"], "hops");
  EXPECT_EQ(json["stopped"], false);
  const std::string table = output_of(add_design, arguments);
  int front = 0;
  for (const ordered_json& point : json["points"]) {
    const std::string spec = point["pattern"];
    if (point["front"] || point["reference"]) {
      EXPECT_NE(table.find(spec + "\n"), std::string::npos) << spec;
    }
    if (point["reference"]) continue;
    front += point["front"].get<bool>();
    EXPECT_LE(point["reads_max"], 7) << spec;
    EXPECT_LE(point["cache_peak"], 8) << spec;
    // A winner is a spec that the other commands accept.
    const ordered_json again = ordered_json::parse(
        output_of(add_compare, {"compare", spec, "-n", "100", "--no-congestion", "--json"}))[0];
    for (const char* key : {"reads_max", "cache_peak", "diameter", "mean_hops"}) {
      EXPECT_EQ(again[key], point[key]) << spec << " " << key;
    }
  }
  EXPECT_GT(front, 0);
}

TEST(DesignCommand, StopsByTime) {
  const ordered_json json = ordered_json::parse(
      output_of(add_design, {"design", "-n", "200", "--reads", "8", "--evaluations", "100000000",
                             "--time", "0.2", "--json"}));
  EXPECT_EQ(json["stopped"], true);
}

TEST(DesignCommand, BadInputIsAnError) {
  EXPECT_EQ(error(add_design, {"design", "-n", "1"}), "n 1 must be at least 2");
  EXPECT_EQ(error(add_design, {"design", "--reads", "0"}), "reads 0 must be at least 1");
  EXPECT_THROW(output_of(add_design, {"design", "--minimize", "cost"}), CLI::ParseError);
  EXPECT_THROW(output_of(add_design, {"design", "--time", "0"}), CLI::ParseError);
}

TEST(CapacityCommand, ByHand) {
  const ordered_json list = ordered_json::parse(
      output_of(add_capacity, {"capacity", "--precision", "1", "--width", "2", "--layers", "2",
                               "--kappa", "2", "--widths", "3,1", "--functions", "3", "--json"}));
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0]["capacity"], 6);   // 1 * 2 * (2 + 0 + 1)
  EXPECT_EQ(list[1]["capacity"], 10);  // 1 * 2 * (2 + 2 + 1)
  EXPECT_EQ(list[2]["capacity"], 12);  // 1 * 2 * 2 * 3
  EXPECT_TRUE(list[1]["compositions"][0]["largest_n"].is_null());
  EXPECT_EQ(list[1]["compositions"][1]["largest_n"], 100);
  EXPECT_TRUE(list[2]["compositions"][1]["largest_n"].is_null());
  EXPECT_EQ(list[2]["compositions"][2]["largest_n"], 1728);  // 12^3
  EXPECT_NE(output_of(add_capacity, {"capacity"}).find("multi-hop (8,1,1,1)"), std::string::npos);
  EXPECT_EQ(error(add_capacity, {"capacity", "--widths", "8,x"}),
            "widths '8,x' must be comma-separated whole numbers, such as 8,1,1,1");
  EXPECT_EQ(error(add_capacity, {"capacity", "--widths", ""}),
            "widths '' must be comma-separated whole numbers, such as 8,1,1,1");
  EXPECT_EQ(error(add_capacity, {"capacity", "--precision", "0"}),
            "precision 0 must be at least 1");
}

TEST(Propositions, ArePrintedAsTableAndJson) {
  testing::internal::CaptureStdout();
  reproduce_propositions(true);
  std::fflush(stdout);
  const ordered_json rows = ordered_json::parse(testing::internal::GetCapturedStdout());
  testing::internal::CaptureStdout();
  reproduce_propositions(false);
  std::fflush(stdout);
  const std::string table = testing::internal::GetCapturedStdout();
  const std::string count = std::to_string(rows.size());
  EXPECT_NE(table.find(count + " of " + count + " hold."), std::string::npos) << table;
}

}  // namespace
}  // namespace hopmix::cli
