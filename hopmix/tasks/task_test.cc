// Properties of every task, and the registry.
#include "hopmix/tasks/task.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "hopmix/base/files.h"
#include "hopmix/base/testing.h"
#include "hopmix/tasks/copy.h"
#include "hopmix/tasks/entity_tracking.h"
#include "hopmix/tasks/function_composition.h"
#include "hopmix/tasks/induction.h"
#include "hopmix/tasks/mad_memory.h"
#include "hopmix/tasks/mad_recall.h"
#include "hopmix/tasks/mqar.h"
#include "hopmix/tasks/permutation.h"
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

// The minimal config of a task: its name, and for text the path.
toml::table least_document(const std::string& name) {
  toml::table document{{"name", name}};
  if (name == "text") {
    static const std::string path = [] {
      std::string bytes;
      Rng rng(1);
      for (int i = 0; i < 20000; ++i) bytes += static_cast<char>(rng.below(256));
      const auto file = std::filesystem::temp_directory_path() /
                        ("hopmix-task-test-" + std::to_string(getpid()) + ".txt");
      write_file(file, bytes);
      std::atexit([] { std::filesystem::remove(path); });
      return file.string();
    }();
    document.insert("path", path);
  }
  return document;
}

// Every task with its defaults, and with sizes at their limits.
std::vector<Task> examples() {
  std::vector<Task> result;
  for (const TaskInfo& info : tasks()) {
    toml::table document = least_document(info.name);
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
  result.push_back(mqar_task({.vocabulary = 8, .sizes = {{12, 3}}}));
  result.push_back(mqar_task({.sizes = {{1024, 256}}, .random_non_queries = false}));
  result.push_back(in_context_recall_task("recall", {.vocabulary = 4, .length = 4}));
  result.push_back(in_context_recall_task(
      "recall", {.vocabulary = 9, .length = 66, .noise_vocabulary = 4, .noise = 0.9}));
  result.push_back(fuzzy_recall_task({.length = 11}));
  result.push_back(fuzzy_recall_task({.vocabulary = 40, .length = 1000, .vary_keys = false}));
  result.push_back(selective_copying_task({.length = 65, .m = 32}));
  result.push_back(compression_task({.vocabulary = 3, .m = 100}));
  result.push_back(memorization_task({.vocabulary = 8, .length = 100, .map_seed = 9}));
  result.push_back(permutation_task({.group = "S3", .tokens = "swaps", .length = 65}));
  result.push_back(permutation_task({.group = "A5", .length = 1}));
  result.push_back(induction_task({.vocabulary = 8, .length = 8, .form = "bigram"}));
  result.push_back(induction_task({.vocabulary = 64, .length = 1000}));
  result.push_back(
      entity_tracking_task({.boxes = 2, .max_items = 1, .operations = 30, .queries = 1}));
  result.push_back(function_composition_task({.functions = 2, .least_n = 2, .most_n = 2}));
  result.push_back(
      function_composition_task({.functions = 7, .least_n = 3, .most_n = 20, .labels = 9}));
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
    // Function composition draws a length for each batch.
    const bool mixed = task.name == "function_composition";
    const int64_t length = mixed ? batch.tokens.size(1) : task.length;
    EXPECT_LE(length, task.length);
    const auto shape = [length](size_t each) {
      std::vector<int64_t> sizes = {20, length};
      if (each > 1) sizes.push_back(static_cast<int64_t>(each));
      return sizes;
    };
    EXPECT_EQ(batch.tokens.sizes(), shape(1 + task.fields.size())) << task.name;
    EXPECT_EQ(batch.targets.sizes(), shape(static_cast<size_t>(task.readouts))) << task.name;
    EXPECT_EQ(batch.slices.sizes(), batch.targets.sizes()) << task.name;
    for (const at::Tensor& tensor : {batch.tokens, batch.targets, batch.slices}) {
      EXPECT_EQ(tensor.dtype(), torch::kLong);
      EXPECT_TRUE(tensor.is_contiguous());
    }
    const at::Tensor numbers = batch.tokens.view({20, length, -1});
    for (int64_t number = 0; number < numbers.size(2); ++number) {
      const int64_t size =
          number == 0 ? task.vocabulary : task.fields[static_cast<size_t>(number - 1)].size;
      EXPECT_GE(numbers.select(2, number).min().item<int64_t>(), 0) << task.name;
      EXPECT_LT(numbers.select(2, number).max().item<int64_t>(), size) << task.name;
    }
    const at::Tensor asked = batch.targets.ne(kNoTarget);
    EXPECT_TRUE(asked.flatten(1).any(1).all().item<bool>())
        << task.name << ": every row asks something";
    EXPECT_GE(batch.targets.masked_select(asked).min().item<int64_t>(), 0);
    EXPECT_LT(batch.targets.max().item<int64_t>(), task.vocabulary);
    // A slice requires a question and a slice name.
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
    torch::manual_seed(1);  // PyTorch's own generator is not used
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

// Fixed batches, computed by an independent program. They must not change between machines or
// versions, or results could not be compared.
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
    // Values are consecutive tokens.
    const int64_t least = targets.min().item<int64_t>();
    EXPECT_LT(targets.max().item<int64_t>(), least + values) << task.name;
    Rng guesser(77);
    int64_t right = 0;
    const int64_t asked = targets.numel();
    for (int64_t i = 0; i < asked; ++i) {
      right += least + guesser.below(values) == targets.const_data_ptr<int64_t>()[i];
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
    // Reads exactly the keys listed, each with a default that is written back.
    toml::table document = least_document(info.name);
    config::Table table(document);
    EXPECT_EQ(make_task(table).name, info.name);
    EXPECT_EQ(document.size(), info.keys.size() + 1) << info.name;
    for (const TaskKey& key : info.keys) {
      EXPECT_TRUE(document.contains(key.name)) << info.name << "." << key.name;
      EXPECT_FALSE(key.meaning.empty());
    }
    // The written-back table makes the same task.
    config::Table resolved(document);
    toml::table bare = least_document(info.name);
    config::Table defaults(bare);
    EXPECT_TRUE(same(make_task(resolved).sample(3, 5), make_task(defaults).sample(3, 5)));
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{
                "copy", "associative_recall", "multi_hop_recall", "mqar", "in_context_recall",
                "fuzzy_recall", "noisy_recall", "selective_copying", "compression", "memorization",
                "permutation", "induction", "entity_tracking", "function_composition", "text"}));
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

  const std::vector<std::pair<std::string, Task>> table = {
      {"name = 'mqar'\nvocabulary = 64\nsizes = '64:4*2, 32:8'\npower_a = 0.5\n"
       "random_non_queries = false",
       mqar_task({.vocabulary = 64,
                  .sizes = {{64, 4, 2}, {32, 8}},
                  .power_a = 0.5,
                  .random_non_queries = false})},
      {"name = 'in_context_recall'\nvocabulary = 20\nlength = 64",
       in_context_recall_task("in_context_recall", {.vocabulary = 20, .length = 64})},
      {"name = 'noisy_recall'\nvocabulary = 20\nlength = 64\nnoise_vocabulary = 6\nnoise = 0.4",
       in_context_recall_task(
           "noisy_recall", {.vocabulary = 20, .length = 64, .noise_vocabulary = 6, .noise = 0.4})},
      {"name = 'fuzzy_recall'\nvocabulary = 20\nlength = 63\nkey_motif = 2\nvalue_motif = 4\n"
       "vary_keys = false",
       fuzzy_recall_task(
           {.vocabulary = 20, .length = 63, .key_motif = 2, .value_motif = 4, .vary_keys = false})},
      {"name = 'selective_copying'\nvocabulary = 8\nlength = 64\nm = 5",
       selective_copying_task({.vocabulary = 8, .length = 64, .m = 5})},
      {"name = 'compression'\nvocabulary = 8\nm = 5", compression_task({.vocabulary = 8, .m = 5})},
      {"name = 'memorization'\nvocabulary = 64\nlength = 16\nmap_seed = 3",
       memorization_task({.vocabulary = 64, .length = 16, .map_seed = 3})},
      {"name = 'permutation'\ngroup = 'S4'\ntokens = 'swaps'\nlength = 9",
       permutation_task({.group = "S4", .tokens = "swaps", .length = 9})},
      {"name = 'induction'\nvocabulary = 9\nlength = 33\nform = 'bigram'",
       induction_task({.vocabulary = 9, .length = 33, .form = "bigram"})},
      {"name = 'entity_tracking'\nboxes = 4\nobjects = 9\nmax_items = 2\noperations = 6\n"
       "queries = 3\nmove_contents = false",
       entity_tracking_task({.boxes = 4,
                             .objects = 9,
                             .max_items = 2,
                             .operations = 6,
                             .queries = 3,
                             .move_contents = false})},
      {"name = 'function_composition'\nfunctions = 3\nleast_n = 4\nmost_n = 9\nlabels = 8",
       function_composition_task({.functions = 3, .least_n = 4, .most_n = 9, .labels = 8})},
  };
  for (const auto& [text, task] : table) {
    const Task read = task_of("[task]\n" + text);
    EXPECT_EQ(read.name, task.name);
    EXPECT_EQ(read.length, task.length);
    EXPECT_EQ(read.vocabulary, task.vocabulary);
    for (const uint64_t seed : {1, 2, 3}) {
      EXPECT_TRUE(same(read.sample(4, seed), task.sample(4, seed))) << text;
    }
  }
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
  // The published sizes: Zoology's vocabulary, and MAD's lengths and vocabularies (compression
  // doubles its length, because the model answers after its token).
  const std::vector<std::pair<int64_t, int64_t>> published = {{64, 8192}, {128, 16}, {128, 16},
                                                              {128, 32},  {256, 16}, {62, 16},
                                                              {32, 256},  {32, 120}, {256, 16}};
  for (size_t i = 0; i < published.size(); ++i) {
    EXPECT_EQ(made[3 + i].length, published[i].first) << made[3 + i].name;
    EXPECT_EQ(made[3 + i].vocabulary, published[i].second) << made[3 + i].name;
  }
}

TEST(Registry, Errors) {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"name = 'coppy'", "task.name = 'coppy': must be a known task; did you mean 'copy'?"},
      {"", "task.name is missing: must be a string"},
      {"name = 3",
       "task.name = 3: must be a string: put it in quotes, name = \"...\", or in a shell, --set "
       "'task.name=\"...\"'"},
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
      {"name = 'mqar'\nsizes = '63:4'", "task.sizes: length = 63: must be even"},
      {"name = 'mqar'\nsizes = '64:17'",
       "task.sizes: pairs = 17: must be from 1 to 16, a quarter of the length and fewer than "
       "vocabulary / 2"},
      {"name = 'mqar'\nvocabulary = 8\nsizes = '64:4'",
       "task.sizes: pairs = 4: must be from 1 to 3, a quarter of the length and fewer than "
       "vocabulary / 2"},
      {"name = 'mqar'\nsizes = '64:4*0'", "task.sizes: weight = 0: must be from 1 to 16777216"},
      {"name = 'mqar'\nsizes = '64x4'",
       "task.sizes = '64x4': must have the form length:pairs, or several with weights such as "
       "64:4*5, "
       "128:8"},
      {"name = 'mqar'\nvocabulary = 9", "task.vocabulary = 9: must be even"},
      {"name = 'mqar'\npower_a = 0.0", "task.power_a = 0: must be above 0 and finite"},
      {"name = 'mqar'\npower_a = nan", "task.power_a = nan: must be above 0 and finite"},
      {"name = 'mqar'\nlength = 64",
       "unknown key 'task.length'; known: name, vocabulary, sizes, power_a, random_non_queries"},
      {"name = 'in_context_recall'\nlength = 127", "task.length = 127: must be even"},
      {"name = 'in_context_recall'\nvocabulary = 3",
       "task.vocabulary = 3: must be from 4 to 16777216"},
      {"name = 'noisy_recall'\nvocabulary = 19",
       "task.vocabulary = 19: must be from 20 to 16777216: at least noise_vocabulary + 4"},
      {"name = 'noisy_recall'\nnoise = 1.0", "task.noise = 1: must be at least 0 and below 1"},
      {"name = 'noisy_recall'\nnoise = nan", "task.noise = nan: must be at least 0 and below 1"},
      {"name = 'noisy_recall'\nnoise_vocabulary = 0",
       "task.noise_vocabulary = 0: must be from 1 to 16777216"},
      {"name = 'fuzzy_recall'\nlength = 10",
       "task.length = 10: must be from 11 to 16777216: room for one pair, twice"},
      {"name = 'fuzzy_recall'\nkey_motif = 8",
       "task.key_motif = 8: must be from 1 to 7, the number of key tokens"},
      {"name = 'fuzzy_recall'\nvalue_motif = 9",
       "task.value_motif = 9: must be from 1 to 8, the number of value tokens"},
      {"name = 'selective_copying'\nlength = 32",
       "task.length = 32: must be from 33 to 16777216: at least 2 m + 1"},
      {"name = 'compression'\nm = 0", "task.m = 0: must be from 1 to 8388608"},
      {"name = 'memorization'\nvocabulary = 4", "task.vocabulary = 4: must be from 5 to 16777216"},
      {"name = 'memorization'\nmap_seed = -1",
       "task.map_seed = -1: must be from 0 to 9223372036854775807"},
      {"name = 'permutation'\ngroup = 'S6'",
       "task.group = 'S6': must be a known name; did you mean 'S3'?"},
      {"name = 'permutation'\ngroup = 'A5'\ntokens = 'swaps'",
       "task.tokens = 'swaps': must be 'elements' for A5, which has no swaps"},
      {"name = 'permutation'\nlength = 0", "task.length = 0: must be from 1 to 16777216"},
      {"name = 'induction'\nform = 'bigrams'",
       "task.form = 'bigrams': must be a known name; did you mean 'bigram'?"},
      {"name = 'induction'\nlength = 2", "task.length = 2: must be from 3 to 16777216"},
      {"name = 'induction'\nlength = 15\nform = 'bigram'",
       "task.length = 15: must be from 16 to 16777216: with at least `vocabulary` tokens some "
       "symbol "
       "repeats"},
      {"name = 'entity_tracking'\nobjects = 20",
       "task.objects = 20: must be from 21 to 16777216: at least boxes * max_items"},
      {"name = 'text'", "task.path is missing: must be a string"},
      {"name = 'text'\npath = '/'\nvalid_fraction = 1.0",
       "task.valid_fraction = 1: must be above 0 and below 1"},
      {"name = 'entity_tracking'\nqueries = 8",
       "task.queries = 8: must be from 1 to 7, the number of boxes"},
      {"name = 'function_composition'\nfunctions = 1",
       "task.functions = 1: must be from 2 to 1024"},
      {"name = 'function_composition'\nleast_n = 31",
       "task.least_n = 31: must be from 2 to 30, most_n"},
      {"name = 'function_composition'\nlabels = 4",
       "task.labels = 4: must be from 5 to 16777216; 0 means one per function"},
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
