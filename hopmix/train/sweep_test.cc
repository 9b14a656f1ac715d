#include "hopmix/train/sweep.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "hopmix/base/files.h"

namespace hopmix::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kText = R"(
title = "T"
[base.train]
steps = 5
[[columns]]
name = "a"
task = { name = "copy", m = 4 }
[[columns]]
name = "deep"
slice = 2
task = { name = "multi_hop_recall", hops = 2 }
[[columns]]
name = "shallow"
slice = 0
task = { name = "multi_hop_recall", hops = 2 }
[[rows]]
name = "2^k"
time = "log n"
blocks = [{ mixer = "glr", pattern = "2^k" }]
paper = { a = 12.5 }
[[rows]]
name = "attention"
blocks = [{ mixer = "attention" }]
set = ["train.lr=0.1"]
)";

class SweepTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("hopmix-sweep-test-" + std::to_string(getpid()));
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  Sweep sweep(const std::string& text = kText) {
    write_file(root_ / "s.toml", text);
    return read_sweep(root_ / "s.toml");
  }
  fs::path root_;
};

TEST_F(SweepTest, CellsJoinBaseColumnAndRow) {
  const Sweep s = sweep();
  const std::vector<Cell> cells = make_cells(s, 2, "runs", {"train.batch=7"});
  ASSERT_EQ(cells.size(), 2u * 2 * 2);  // `deep` and `shallow` share their runs
  EXPECT_EQ(cells[0].run, "runs/a/2_k/seed-0");
  EXPECT_EQ(cells[1].config["train"]["lr"].value<double>(), 0.1);
  EXPECT_FALSE(cells[0].config["train"]["lr"]);
  EXPECT_EQ(cells[0].config["train"]["batch"].value<int64_t>(), 7);
  EXPECT_EQ(cells[0].config["model"]["blocks"][0]["pattern"].value<std::string>(), "2^k");
  EXPECT_EQ(cells.back().seed, 1);
  EXPECT_EQ(cells.back().config["task"]["name"].value<std::string>(), "multi_hop_recall");
}

TEST_F(SweepTest, ResultsFillEveryColumnThatSharesARun) {
  const Sweep s = sweep();
  const std::vector<Cell> cells = make_cells(s, 2, root_, {});
  const auto finish = [&](const Cell& cell, const std::string& eval) {
    fs::create_directories(cell.run);
    write_file(cell.run / "metrics.jsonl",
               "{\"step\":1,\"loss\":2}\n{\"step\":5,\"eval\":" + eval + "}\n");
  };
  const std::string slices = R"({"accuracy":50,"slices":{"depth 0":90,"depth 1":60,"depth 2":30}})";
  finish(cells[0], R"({"accuracy":80})");
  finish(cells[2], slices);
  finish(cells[4], R"({"accuracy":84})");
  const std::vector<nlohmann::json> results = read_results(cells);
  const AccuracyTable table = collect(s, cells, results);
  EXPECT_EQ(table[0][0], (std::vector<double>{80, 84}));
  EXPECT_EQ(table[0][1], std::vector<double>{30});
  EXPECT_EQ(table[0][2], std::vector<double>{90});
  EXPECT_TRUE(table[1][0].empty());

  const nlohmann::json json = to_json(s, cells, results);
  EXPECT_EQ(json["rows"][0]["columns"]["a"]["mean"], 82.0);
  EXPECT_NEAR(json["rows"][0]["columns"]["a"]["deviation"].get<double>(), std::sqrt(8.0), 1e-12);
  EXPECT_EQ(json["rows"][0]["columns"]["a"]["paper"], 12.5);
  EXPECT_TRUE(json["rows"][1]["columns"]["a"]["mean"].is_null());

  const std::string text = to_text(s, table);
  EXPECT_NE(text.find("82.00 ±2.83 (12.50)"), std::string::npos) << text;
  EXPECT_NE(text.find("..."), std::string::npos);
}

TEST_F(SweepTest, AnUnfinishedRunIsNoResult) {
  const Sweep s = sweep();
  const std::vector<Cell> cells = make_cells(s, 1, root_, {});
  fs::create_directories(cells[0].run);
  write_file(cells[0].run / "metrics.jsonl", "{\"step\":1,\"loss\":2}\n{\"step\":5,\"ev");
  EXPECT_TRUE(read_results(cells)[0].is_null());
}

TEST_F(SweepTest, EvaluationsTakeTheRunsOfTheirRow) {
  const Sweep s = sweep(std::string(kText) + R"(
[[evaluations]]
name = "longer"
row = "attention"
set = ["task.m=9"]
)");
  const std::vector<Cell> cells = make_cells(s, 2, root_, {});
  const std::vector<Cell> again = evaluation_cells(s, cells);
  ASSERT_EQ(again.size(), 4u);  // two seeds, and two columns share a run
  for (const Cell& cell : again) {
    EXPECT_EQ(cell.row, 0u);
    EXPECT_NE(cell.run.string().find("attention"), std::string::npos) << cell.run;
    EXPECT_EQ(cell.config["task"]["m"].value<int64_t>(), 9);
  }
  const Sweep second = evaluation_sweep(s);
  ASSERT_EQ(second.rows.size(), 1u);
  EXPECT_EQ(second.rows[0].name, "longer");
  const std::vector<nlohmann::json> scores(
      4, {{"accuracy", 50}, {"slices", {{"depth 2", 1}, {"depth 0", 2}}}});
  EXPECT_EQ(collect(second, again, scores)[0],
            (std::vector<std::vector<double>>{{50, 50}, {1, 1}, {2, 2}}));
}

TEST_F(SweepTest, MistakesNameTheKey) {
  const auto message = [&](std::string text, const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
    try {
      sweep(text);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(kText, "paper = { a", "paper = { b").substr(0, 28),
            "unknown key 'rows.0.paper.b'");
  EXPECT_EQ(message(kText, "slice = 2", "slce = 2"),
            "unknown key 'columns.1.slce'; did you mean 'slice'?");
  EXPECT_EQ(message(kText, "\"attention\"\n", "\"2+k\"\n"),
            "rows '2^k' and '2+k' share the folder '2_k'; rename one");
  EXPECT_EQ(message(kText, "train.lr=0.1", "seed=4"),
            "rows.1.set = 'seed=4': --seeds sets the seeds, and each run uses one thread");
  EXPECT_EQ(message(kText, "[base.train]", "[bse.train]"),
            "unknown key 'bse'; did you mean 'base'?");
  EXPECT_EQ(message(std::string(kText) + "[[evaluations]]\nname = 'e'\nrow = 'attention'\n",
                    "row = 'attention'", "row = 'atention'"),
            "evaluations.0.row = 'atention': must be a row's name; did you mean 'attention'?");
}

TEST(Summary, MeanAndSampleDeviation) {
  EXPECT_EQ(summarize({}).count, 0);
  EXPECT_EQ(summarize({5}).deviation, 0);
  EXPECT_DOUBLE_EQ(summarize({1, 2, 3}).mean, 2);
  EXPECT_DOUBLE_EQ(summarize({1, 2, 3}).deviation, 1);
}

}  // namespace
}  // namespace hopmix::train
