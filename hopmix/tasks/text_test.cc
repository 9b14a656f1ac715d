#include "hopmix/tasks/text.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>
#include <set>

#include "hopmix/base/testing.h"
#include "hopmix/tasks/testing.h"
#include "hopmix/text/testing.h"
#include "hopmix/text/tokenizer_training.h"

namespace hopmix::tasks {
namespace {

using TextTest = text::FolderTest;

std::string letters(char first, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += static_cast<char>(first + static_cast<char>(i));
  return text;
}

// Rows of a batch as the bytes that they hold, and what follows the last of them.
std::vector<std::string> windows(const Batch& batch) {
  std::vector<std::string> result;
  for (int64_t r = 0; r < batch.tokens.size(0); ++r) {
    const int64_t* tokens = batch.tokens[r].const_data_ptr<int64_t>();
    const int64_t* targets = batch.targets[r].const_data_ptr<int64_t>();
    std::string window(1, static_cast<char>(tokens[0]));
    for (int64_t t = 0; t < batch.tokens.size(1) && targets[t] != kNoTarget; ++t) {
      EXPECT_EQ(tokens[t], static_cast<unsigned char>(window.back())) << "targets are the next";
      window += static_cast<char>(targets[t]);
    }
    result.push_back(window);
  }
  return result;
}

TEST_F(TextTest, RowsAreWindowsOfTheText) {
  const std::string text = letters('A', 50);
  const std::string path = write("train.txt", text), valid = write("valid.txt", letters('a', 26));
  const Task task = text_task({.path = path, .valid = valid, .length = 12});
  EXPECT_EQ(task.vocabulary, 256);
  EXPECT_EQ(task.length, 12);
  EXPECT_EQ(task.bytes_per_token, 1);
  EXPECT_TRUE(task.files.empty());
  std::map<std::string, double> counts;
  for (const std::string& window : windows(task.sample(10000, 4))) {
    EXPECT_EQ(window.size(), 13u);
    counts[window] += 1;
  }
  // Every one of the 38 places, alike.
  std::vector<double> shares;
  for (size_t start = 0; start + 13 <= text.size(); ++start) {
    shares.push_back(counts[text.substr(start, 13)]);
  }
  EXPECT_EQ(counts.size(), shares.size());
  expect_uniform(shares);
}

TEST_F(TextTest, TheHeldOutTextIsNeverTrainedOn) {
  const std::string path = write("train.txt", letters('A', 26));
  const std::string valid = write("valid.txt", letters('a', 26));
  for (const TextConfig& config :
       {TextConfig{.path = path, .valid = valid, .length = 5},
        TextConfig{.path = write("both.txt", letters('A', 26) + letters('a', 26)),
        .valid_fraction = 0.5,
        .length = 5}}) {
    const Task task = text_task(config);
    for (const std::string& window : windows(task.sample(500, 1))) EXPECT_LE(window.back(), 'Z');
    for (const std::string& window : windows(task.sample_held_out(500, 1))) {
      EXPECT_GE(window.front(), 'a');
    }
  }
}

TEST_F(TextTest, DocumentsInProportionToTheirTokens) {
  write("docs/a", letters('a', 20));
  write("docs/b", letters('A', 5));
  write("docs/c", "0");  // nothing to ask
  write("docs/d", "123456");
  const Task task = text_task({.path = folder_ / "docs", .valid = folder_ / "docs", .length = 8});
  const Batch batch = task.sample(10000, 2);
  std::map<char, double> counts;
  std::set<std::string> short_ones;
  for (const std::string& window : windows(batch)) {
    const bool lower = window[0] >= 'a', upper = window[0] >= 'A' && !lower;
    counts[lower ? 'a' : upper ? 'A' : '1'] += 1;
    if (!lower) short_ones.insert(window);
    if (lower) {
      EXPECT_EQ(window.size(), 9u);
    }
  }
  expect_shares({counts['a'], counts['A'], counts['1']}, {20, 5, 6});
  // Shorter than a window: whole, and nothing is asked after it.
  EXPECT_EQ(short_ones, (std::set<std::string>{"ABCDE", "123456"}));
  const at::Tensor unasked = batch.targets.eq(kNoTarget);
  // At the last token of a short document and after it; a token 0 stands only there.
  EXPECT_TRUE(batch.tokens.eq(0).logical_and(unasked.logical_not()).any().item<bool>() == false);
}

TEST_F(TextTest, ADocumentExactlyAWindowLong) {
  for (const size_t size : {7u, 8u, 9u}) {
    const std::string path = write("x", letters('a', size));
    const Task task = text_task({.path = path, .valid = path, .length = 8});
    for (const std::string& window : windows(task.sample(20, 0))) {
      EXPECT_EQ(window, letters('a', size));
    }
  }
}

TEST_F(TextTest, SubwordsStandForTheirBytes) {
  const std::string text = text::made_up_text(2000), held = text::made_up_text(200, 5);
  const std::string path = write("train.txt", text), valid = write("valid.txt", held);
  const std::string bytes =
      text::train_tokenizer(text::list_documents(path, "path"), {.vocabulary = 300});
  const std::string model = write("x.model", bytes);
  const Task task = text_task(
      {.path = path, .valid = valid, .tokenizer = model, .length = 16, .cache = folder_ / "cache"});
  EXPECT_EQ(task.vocabulary, 300);
  EXPECT_EQ(task.files, (std::map<std::string, std::string>{{"tokenizer.model", bytes}}));
  const text::Tokenizer tokenizer(bytes);
  const double tokens = static_cast<double>(tokenizer.encode(held).size());
  EXPECT_DOUBLE_EQ(task.bytes_per_token, static_cast<double>(held.size()) / tokens);
  EXPECT_GT(task.bytes_per_token, 2);
  const Batch batch = task.sample(50, 0);
  for (int64_t r = 0; r < 50; ++r) {
    const std::span<const int64_t> row(batch.tokens[r].const_data_ptr<int64_t>(), 16);
    EXPECT_NE(text.find(tokenizer.decode(row)), std::string::npos);
  }
}

// SentencePiece and libc10 export a variable of one name and two types; the loader must take
// SentencePiece's, who alone uses it (cmake/FindSentencePiece.cmake).
TEST(SentencePiece, HasItsOwnFlagsBesideTorch) {
  void* flag = dlsym(RTLD_DEFAULT, "FLAGS_minloglevel");
  ASSERT_NE(flag, nullptr);
  Dl_info owner;
  ASSERT_NE(dladdr(flag, &owner), 0);
  EXPECT_NE(std::string(owner.dli_fname).find("sentencepiece"), std::string::npos)
      << owner.dli_fname;
}

TEST_F(TextTest, Errors) {
  const std::string path = write("x", letters('a', 26)), none = (folder_ / "none").string();
  const auto error = [&](const TextConfig& config) {
    return error_of([&] { text_task(config, "task."); });
  };
  EXPECT_EQ(error({}), "task.path = '': must be a file or a folder of text");
  EXPECT_EQ(error({.path = none}),
            "task.path = '" + none + "': must be a file or a folder of text; there is none");
  EXPECT_EQ(error({.path = path, .valid = none}),
            "task.valid = '" + none + "': must be a file or a folder of text; there is none");
  EXPECT_EQ(error({.path = path, .length = 0}), "task.length = 0: must be from 1 to 16777216");
  for (const double fraction : {0.0, 1.0, std::nan("")}) {
    EXPECT_TRUE(error({.path = path, .valid_fraction = fraction})
                    .ends_with(": must be above 0 and below 1"));
  }
  EXPECT_EQ(error({.path = path, .valid = write("y", "1")}),
            "task.path = '" + path +
                "': must have two tokens in a row to train on, and as many held out");
  EXPECT_TRUE(error({.path = path, .tokenizer = none}).starts_with("task.tokenizer = '" + none));
  EXPECT_EQ(error_of([&] { text_task({.path = path}).sample(0, 0); }),
            "batch = 0: must be at least 1");
}

}  // namespace
}  // namespace hopmix::tasks
