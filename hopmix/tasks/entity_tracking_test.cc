#include "hopmix/tasks/entity_tracking.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>
#include <set>
#include <sstream>

#include "hopmix/tasks/testing.h"

namespace hopmix::tasks {
namespace {

// A row as text: objects are `o0`, `o1`, ...
std::vector<std::string> read_words(const at::TensorAccessor<int64_t, 1>& tokens,
                                    const EntityTrackingConfig& config) {
  const std::vector<std::string> names = {"nothing", ".",        "Box", "contains", "Move", "Put",
                                          "Remove",  "contents", "of",  "from",     "to",   "into"};
  std::vector<std::string> words;
  for (int64_t i = 0; i < tokens.size(0); ++i) {
    const int64_t token = tokens[i] - config.objects;
    const auto count = static_cast<int64_t>(names.size());
    if (token < 0) {
      words.push_back("o" + std::to_string(tokens[i]));
    } else if (token < count) {
      words.push_back(names[static_cast<size_t>(token)]);
    } else if (token < count + config.boxes) {
      words.push_back(std::to_string(token - count));
    } else {
      words.push_back("PAD");
    }
  }
  return words;
}

using Items = std::set<int64_t>;

// Reads a row using only the rules of the text, and computes what every target must be.
class Reader {
 public:
  Reader(std::vector<std::string> words, const EntityTrackingConfig& config)
      : words_(std::move(words)), config_(config) {
    while (words_[at_] == "PAD") ++at_;
    for (int64_t box = 0; box < config.boxes; ++box) {
      EXPECT_EQ(read_box(), box);
      expect("contains");
      boxes_[box] = read_items();
      if (boxes_[box].empty()) expect("nothing");
      for (const int64_t item : boxes_[box]) use(item);
      expect(".");
    }
    for (int64_t i = 0; i < config.operations; ++i) {
      operate();
      for (const auto& [box, items] : boxes_) {
        EXPECT_LE(static_cast<int64_t>(items.size()), config.max_items);
      }
    }
    for (int64_t i = 0; i < config.queries; ++i) read_question();
    EXPECT_EQ(at_, words_.size()) << "the text ends with the row";
  }

  std::map<size_t, std::pair<std::string, int64_t>> answers;  // target and slice by position
  std::map<std::string, int64_t> kinds;

 private:
  std::string next() { return words_.at(at_++); }
  void expect(const std::string& word) { ASSERT_EQ(next(), word) << at_; }
  int64_t read_box() {
    EXPECT_EQ(next(), "Box");
    const int64_t box = std::stoll(next());
    EXPECT_TRUE(box >= 0 && box < config_.boxes);
    return box;
  }
  Items read_items() {
    Items items;
    while (words_.at(at_)[0] == 'o' && words_[at_] != "of") {
      const int64_t item = std::stoll(next().substr(1));
      EXPECT_TRUE(items.empty() || item > *items.rbegin()) << "in order";
      items.insert(item);
    }
    return items;
  }
  void use(int64_t item) {
    EXPECT_TRUE(used_.insert(item).second) << "o" << item << " is in two boxes";
  }

  void take(int64_t box, const Items& items) {
    EXPECT_FALSE(items.empty());
    for (const int64_t item : items) EXPECT_EQ(boxes_[box].erase(item), 1u);
  }

  void operate() {
    const std::string kind = next();
    ++kinds[kind];
    if (kind == "Put") {
      const Items items = read_items();
      expect("into");
      const int64_t box = read_box();
      EXPECT_FALSE(items.empty());
      for (const int64_t item : items) use(item);
      boxes_[box].insert(items.begin(), items.end());
      ++touched_[box];
    } else if (kind == "Remove") {
      const Items items = read_items();
      expect("from");
      const int64_t box = read_box();
      take(box, items);
      for (const int64_t item : items) used_.erase(item);
      ++touched_[box];
    } else {
      ASSERT_EQ(kind, "Move");
      const bool contents = words_[at_] == "contents";
      Items items;
      if (contents) {
        expect("contents");
        expect("of");
        ++kinds["contents"];
      } else {
        items = read_items();
        expect("from");
      }
      const int64_t from = read_box();
      expect("to");
      const int64_t to = read_box();
      EXPECT_NE(from, to);
      if (contents) {
        items = boxes_[from];
      } else if (config_.move_contents) {
        EXPECT_NE(items, boxes_[from]) << "all of a box is not named";
      }
      take(from, items);
      boxes_[to].insert(items.begin(), items.end());
      ++touched_[from];
      ++touched_[to];
    }
    expect(".");
  }

  void read_question() {
    const int64_t box = read_box();
    EXPECT_TRUE(asked_.insert(box).second);
    expect("contains");
    std::vector<std::string> answer;
    for (const int64_t item : boxes_[box]) answer.push_back("o" + std::to_string(item));
    answer.push_back(answer.empty() ? "nothing" : ".");
    for (const std::string& word : answer) {
      answers[at_ - 1] = {word, touched_[box]};
      expect(word);
    }
    if (answer.back() == "nothing") expect(".");
  }

  std::vector<std::string> words_;
  const EntityTrackingConfig& config_;
  size_t at_ = 0;
  std::map<int64_t, Items> boxes_;
  std::map<int64_t, int64_t> touched_;
  Items used_;
  std::set<int64_t> asked_;
};

TEST(EntityTracking, TargetsAreWhatTheTextSays) {
  for (const EntityTrackingConfig& config : std::vector<EntityTrackingConfig>{
           {},
           {.move_contents = false},
           {.boxes = 2, .objects = 2, .max_items = 1, .operations = 20, .queries = 2},
           {.boxes = 2, .objects = 2, .max_items = 1, .operations = 0, .queries = 1},
           {.boxes = 12, .objects = 100, .max_items = 5, .operations = 40, .queries = 3}}) {
    const Task task = entity_tracking_task(config);
    EXPECT_EQ(task.chance, 100.0 / static_cast<double>(config.objects + 2));
    const int64_t n = 40;
    const Batch batch = task.sample(n, 4);
    const auto tokens = batch.tokens.accessor<int64_t, 2>();
    const auto targets = batch.targets.accessor<int64_t, 2>();
    const auto slices = batch.slices.accessor<int64_t, 2>();
    std::map<std::string, int64_t> kinds;
    for (int64_t b = 0; b < n; ++b) {
      const Reader reader(read_words(tokens[b], config), config);
      ASSERT_FALSE(testing::Test::HasFailure());
      for (const auto& [kind, count] : reader.kinds) kinds[kind] += count;
      const std::vector<std::string> wanted = read_words(targets[b], config);
      for (int64_t i = 0; i < task.length; ++i) {
        const auto answer = reader.answers.find(static_cast<size_t>(i));
        if (answer == reader.answers.end()) {
          EXPECT_EQ(targets[b][i], kNoTarget);
          EXPECT_EQ(slices[b][i], kNoSlice);
        } else {
          EXPECT_EQ(wanted[static_cast<size_t>(i)], answer->second.first);
          EXPECT_EQ(slices[b][i], answer->second.second);
        }
      }
    }
    if (config.operations > 0) {
      for (const std::string kind : {"Move", "Put", "Remove"}) EXPECT_GT(kinds[kind], 0);
      EXPECT_EQ(kinds["contents"] > 0, config.move_contents);
    }
  }
}

TEST(EntityTracking, BoxesStartWithAnyNumberOfAnyObjects) {
  const EntityTrackingConfig config{.boxes = 2, .objects = 6, .operations = 0, .queries = 2};
  const int64_t n = 4000;
  const Batch batch = entity_tracking_task(config).sample(n, 3);
  const auto tokens = batch.tokens.accessor<int64_t, 2>();
  std::vector<double> sizes(4), objects(6), first_asked(2);
  for (int64_t b = 0; b < n; ++b) {
    const std::vector<std::string> words = read_words(tokens[b], config);
    size_t at = 0;
    while (words[at] != "contains") ++at;
    size_t size = 0;
    for (++at; words[at][0] == 'o'; ++at, ++size) ++objects.at(std::stoull(words[at].substr(1)));
    ++sizes.at(size);
    for (int statements = 0; statements < 2; ++at) statements += words[at] == ".";
    ++first_asked.at(std::stoull(words[at + 1]));
  }
  expect_uniform(sizes);
  expect_uniform(first_asked);
  // Objects of a box differ, which makes the true statistic smaller, never larger.
  expect_uniform(objects);
}

}  // namespace
}  // namespace hopmix::tasks
