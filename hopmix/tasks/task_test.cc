// What holds for every task, and the registry.
#include "hopmix/tasks/task.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

#include "hopmix/base/testing.h"
#include "hopmix/tasks/copy.h"
#include "hopmix/tasks/recall.h"
#include "hopmix/tasks/rng.h"
#include "hopmix/tasks/rows.h"

namespace hopmix::tasks {
namespace {

Task task_of(const std::string& toml) {
  toml::table document = config::parse(toml, "test");
  config::Table table = config::Table(document).table("task");
  return make_task(table);
}

// Every task by default, and the sizes at the edges.
std::vector<Task> examples() {
  std::vector<Task> result;
  for (const TaskInfo& info : tasks()) {
    toml::table document{{"name", info.name}};
    config::Table table(document);
    result.push_back(make_task(table));
  }
  for (const int64_t m : {1, 2, 63, 64, 65, 1000})
    result.push_back(copy_task({.symbols = 3, .m = m}));
  result.push_back(chains_task("recall", {.chains = 1, .hops = 0, .values = 2, .queries = 1}));
  result.push_back(chains_task("recall", {.chains = 100, .hops = 0, .values = 20, .queries = 100}));
  result.push_back(chains_task("hops", {.chains = 1, .hops = 63, .values = 2, .queries = 64}));
  result.push_back(
      chains_task("hops", {.chains = 8, .hops = 2, .values = 4, .queries = 8, .balanced = true}));
  return result;
}

bool same(const Batch& a, const Batch& b) {
  return torch::equal(a.tokens, b.tokens) && torch::equal(a.targets, b.targets) &&
         torch::equal(a.slices, b.slices);
}

Batch rows(const Batch& batch, int64_t first, int64_t last) {
  return {batch.tokens.slice(0, first, last), batch.targets.slice(0, first, last),
          batch.slices.slice(0, first, last)};
}

TEST(Task, ShapesAndRanges) {
  for (const Task& task : examples()) {
    const Batch batch = task.sample(20, 3);
    for (const at::Tensor& tensor : {batch.tokens, batch.targets, batch.slices}) {
      EXPECT_EQ(tensor.sizes(), (std::vector<int64_t>{20, task.length})) << task.name;
      EXPECT_EQ(tensor.dtype(), torch::kLong);
      EXPECT_TRUE(tensor.is_contiguous());
    }
    EXPECT_GE(batch.tokens.min().item<int64_t>(), 0);
    EXPECT_LT(batch.tokens.max().item<int64_t>(), task.vocabulary);
    const at::Tensor asked = batch.targets.ne(kNoTarget);
    EXPECT_TRUE(asked.any(1).all().item<bool>()) << task.name << ": every row asks something";
    EXPECT_GE(batch.targets.masked_select(asked).min().item<int64_t>(), 0);
    EXPECT_LT(batch.targets.max().item<int64_t>(), task.vocabulary);
    // A slice goes with a question, and with a name for it.
    EXPECT_TRUE(torch::equal(batch.slices.ne(kNoSlice),
                             task.slice_name.empty() ? torch::zeros_like(asked) : asked));
  }
}

TEST(Task, SameSeedSameBatchOnAnyThreadCount) {
  const int threads = at::get_num_threads();
  for (const Task& task : examples()) {
    at::set_num_threads(1);
    const Batch once = task.sample(7, 42);
    at::set_num_threads(4);
    const Batch again = task.sample(7, 42);
    EXPECT_TRUE(same(once, again)) << task.name;
    torch::manual_seed(1);  // torch's own generator has no part in it
    EXPECT_TRUE(same(once, task.sample(7, 42))) << task.name;
    EXPECT_FALSE(same(once, task.sample(7, 43))) << task.name;
    EXPECT_FALSE(torch::equal(task.sample(64, 1).tokens, task.sample(64, 2).tokens)) << task.name;
  }
  at::set_num_threads(threads);
}

TEST(Task, RowsDoNotDependOnTheBatch) {
  for (const Task& task : examples()) {
    const Batch large = task.sample(65, 11);
    for (const int64_t size : {1, 2, 63, 64}) {
      EXPECT_TRUE(same(task.sample(size, 11), rows(large, 0, size))) << task.name << " " << size;
    }
  }
}

TEST(Task, RowsDiffer) {
  for (const Task& task : examples()) {
    if (task.length < 20) continue;  // few enough sequences to repeat
    const Batch batch = task.sample(64, 0);
    EXPECT_EQ(std::get<0>(at::unique_dim(batch.tokens, 0)).size(0), 64) << task.name;
  }
}

// Fixed batches, worked out by a second program: the numbers must be these on every machine and in
// every version, or results are not comparable.
TEST(Task, NumbersAreFixed) {
  const Batch copy = copy_task({.symbols = 4, .m = 5}).sample(2, 1);
  EXPECT_TRUE(torch::equal(
      copy.tokens, torch::tensor({{1, 3, 1, 1, 0, 4, 1, 3, 1, 1}, {1, 3, 3, 0, 1, 4, 1, 3, 3, 0}},
                                 torch::kLong)))
      << copy.tokens;
  const Batch hops =
      chains_task("hops", {.chains = 2, .hops = 1, .values = 3, .queries = 2}).sample(1, 1);
  EXPECT_TRUE(torch::equal(hops.tokens,
                           torch::tensor({{6, 1, 7, 2, 4, 6, 5, 7, 3, 4, 3, 5}}, torch::kLong)))
      << hops.tokens;
}

TEST(Task, UniformGuessesScoreChance) {
  for (const Task& task : examples()) {
    const Batch batch = task.sample(500, 8);
    const at::Tensor targets = batch.targets.masked_select(batch.targets.ne(kNoTarget));
    const int64_t values = std::llround(100 / task.chance);
    EXPECT_LT(targets.max().item<int64_t>(), values) << task.name;
    Rng guesser(77);
    int64_t right = 0;
    const int64_t asked = targets.numel();
    for (int64_t i = 0; i < asked; ++i) {
      right += guesser.below(values) == targets.const_data_ptr<int64_t>()[i];
    }
    const double p = task.chance / 100;
    EXPECT_NEAR(100.0 * static_cast<double>(right) / static_cast<double>(asked), task.chance,
                4 * 100 * std::sqrt(p * (1 - p) / static_cast<double>(asked)))
        << task.name;
  }
}

TEST(Registry, ListsNamesKeysAndDefaults) {
  std::vector<std::string> names;
  for (const TaskInfo& info : tasks()) {
    names.push_back(info.name);
    EXPECT_FALSE(info.description.empty());
    EXPECT_EQ(info.description.find('\n'), std::string::npos);
    // Exactly the keys listed are read, each with a default that is written back.
    toml::table document{{"name", info.name}};
    config::Table table(document);
    EXPECT_EQ(make_task(table).name, info.name);
    EXPECT_EQ(document.size(), info.keys.size() + 1) << info.name;
    for (const TaskKey& key : info.keys) {
      EXPECT_TRUE(document.contains(key.name)) << info.name << "." << key.name;
      EXPECT_FALSE(key.meaning.empty());
    }
    // What was written back makes the same task.
    config::Table resolved(document);
    toml::table bare{{"name", info.name}};
    config::Table defaults(bare);
    EXPECT_TRUE(same(make_task(resolved).sample(3, 5), make_task(defaults).sample(3, 5)));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"copy", "associative_recall", "multi_hop_recall"}));
}

TEST(Registry, ReadsEveryKey) {
  const Task copy = task_of("[task]\nname = 'copy'\nsymbols = 7\nm = 9");
  EXPECT_EQ(copy.vocabulary, 8);
  EXPECT_EQ(copy.length, 18);
  const Task recall = task_of(
      "[task]\nname = 'associative_recall'\nchains = 12\nvalues = 6\nqueries = 3\nbalanced = true");
  EXPECT_EQ(recall.vocabulary, 6 + 1 + 12);
  EXPECT_EQ(recall.length, 2 * (12 + 3));
  EXPECT_EQ(recall.slice_name, "");
  const Task hops =
      task_of("[task]\nname = 'multi_hop_recall'\nchains = 8\nhops = 2\nbalanced = true");
  EXPECT_EQ(hops.vocabulary, 4 + 1 + 24);
  EXPECT_EQ(hops.length, 2 * (24 + 8));
  EXPECT_EQ(hops.slice_name, "depth");
  EXPECT_TRUE(same(hops.sample(4, 1),
                   chains_task("hops", {.chains = 8, .hops = 2, .balanced = true}).sample(4, 1)));
  EXPECT_FALSE(same(hops.sample(4, 1), chains_task("hops", {.chains = 8, .hops = 2}).sample(4, 1)));
}

TEST(Registry, Defaults) {
  const std::vector<Task> made = examples();
  EXPECT_EQ(made[0].length, 60);
  EXPECT_EQ(made[0].vocabulary, 5);
  EXPECT_EQ(made[1].length, 2 * (24 + 8));
  EXPECT_EQ(made[1].vocabulary, 4 + 1 + 24);
  EXPECT_EQ(made[2].length, 2 * (24 + 8));
  EXPECT_EQ(made[2].vocabulary, 4 + 1 + 24);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(made[static_cast<size_t>(i)].chance, 25.0);
}

TEST(Registry, Errors) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"name = 'coppy'", "task.name = 'coppy': must be a known task; did you mean 'copy'?"},
      {"", "task.name is missing: must be a string"},
      {"name = 3", "task.name = 3: must be a string"},
      {"name = 'copy'\nsymbol = 3", "unknown key 'task.symbol'; did you mean 'symbols'?"},
      {"name = 'copy'\nsymbols = 1", "task.symbols = 1: must be from 2 to 16777216"},
      {"name = 'copy'\nsymbols = 2.5", "task.symbols = 2.5: must be an integer"},
      {"name = 'copy'\nm = 0", "task.m = 0: must be from 1 to 8388608"},
      {"name = 'copy'\nm = 9000000000000000000",
       "task.m = 9000000000000000000: must be from 1 to 8388608"},
      {"name = 'associative_recall'\nhops = 2",
       "unknown key 'task.hops'; known: name, chains, values, queries, balanced"},
      {"name = 'associative_recall'\nchains = 0", "task.chains = 0: must be from 1 to 8388608"},
      {"name = 'associative_recall'\nvalues = 1", "task.values = 1: must be from 2 to 16777216"},
      {"name = 'associative_recall'\nqueries = 0",
       "task.queries = 0: must be from 1 to 24, the number of facts"},
      {"name = 'associative_recall'\nqueries = 25",
       "task.queries = 25: must be from 1 to 24, the number of facts"},
      {"name = 'multi_hop_recall'\nhops = -1", "task.hops = -1: must be from 0 to 1398100"},
      {"name = 'multi_hop_recall'\nhops = 9223372036854775807",
       "task.hops = 9223372036854775807: must be from 0 to 1398100"},
      {"name = 'multi_hop_recall'\nqueries = 25",
       "task.queries = 25: must be from 1 to 24, the number of facts"},
      {"name = 'multi_hop_recall'\nbalanced = true",
       "task.chains = 6: must be a multiple of values = 4 when balanced"},
      {"name = 'multi_hop_recall'\nbalanced = 1", "task.balanced = 1: must be true or false"},
  };
  for (const auto& [text, message] : table) {
    EXPECT_EQ(error_of([&] { task_of("[task]\n" + text); }), message) << text;
  }
}

TEST(Registry, ErrorsFromCpp) {
  EXPECT_EQ(error_of([] { copy_task({.symbols = 4, .m = -1}); }),
            "m = -1: must be from 1 to 8388608");
  EXPECT_EQ(error_of([] { chains_task("x", {.chains = 3, .hops = 0, .queries = 4}); }),
            "queries = 4: must be from 1 to 3, the number of facts");
  for (const Task& task : examples()) {
    EXPECT_EQ(error_of([&] { task.sample(0, 1); }), "batch = 0: must be at least 1");
    EXPECT_EQ(error_of([&] { task.sample(-5, 1); }), "batch = -5: must be at least 1");
  }
}

}  // namespace
}  // namespace hopmix::tasks
