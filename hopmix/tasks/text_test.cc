#include "hopmix/tasks/text.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>
#include <set>
#include <sstream>

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

// The rows of a batch as bytes, and the target after the last of them.
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
  // Each of the 38 positions is equally likely.
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
  // At the last token of a short document and after it; token 0 occurs only there.
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

// ---- Packed documents

// Every document of a batch as its tokens, followed by all targets.
struct Packed {
  std::vector<std::vector<int64_t>> tokens, targets;
};

Packed unpack(const Batch& batch, int64_t rows, int64_t length) {
  EXPECT_EQ(batch.tokens.sizes(), (std::vector<int64_t>{1, rows * length}));
  EXPECT_EQ(batch.targets.sizes(), batch.tokens.sizes());
  EXPECT_EQ(batch.slices.sizes(), batch.tokens.sizes());
  const at::Tensor& ends = batch.cu_seqlens.value();
  EXPECT_EQ(ends.scalar_type(), at::kLong);
  EXPECT_EQ(ends[0].item<int64_t>(), 0);
  EXPECT_EQ(ends[-1].item<int64_t>(), rows * length);
  EXPECT_TRUE(ends.diff().gt(0).all().item<bool>());
  for (int64_t r = 0; r < rows; ++r) {
    EXPECT_TRUE(ends.eq(r * length).any().item<bool>()) << "a row is cut off from the one before";
  }
  Packed result;
  const int64_t* tokens = batch.tokens.const_data_ptr<int64_t>();
  const int64_t* targets = batch.targets.const_data_ptr<int64_t>();
  for (int64_t n = 0; n + 1 < ends.numel(); ++n) {
    const int64_t begin = ends[n].item<int64_t>(), end = ends[n + 1].item<int64_t>();
    result.tokens.emplace_back(tokens + begin, tokens + end);
    result.targets.emplace_back(targets + begin, targets + end);
  }
  return result;
}

std::string text_of(const std::vector<int64_t>& tokens) {
  std::string text;
  for (const int64_t token : tokens) text += static_cast<char>(token);
  return text;
}

// Documents whose bytes are all different make everything visible.
TEST_F(TextTest, PackedRowsHoldDocumentsOneBehindTheOther) {
  write("docs/a", letters('A', 20));
  write("docs/b", "12345");
  write("docs/c", "_");  // nothing to ask
  write("docs/d", letters('a', 9));
  const std::string stream = letters('A', 20) + "12345" + letters('a', 9);
  const std::string path = folder_ / "docs";
  for (const int64_t length : {2, 3, 12, 100}) {
    const Task task =
        text_task({.path = path, .valid = path, .length = length, .documents = "files"});
    EXPECT_EQ(task.length, length);
    EXPECT_EQ(task.bytes_per_token, 1);
    const int64_t rows = 2000;
    const Batch batch = task.sample(rows, 5);
    const Packed packed = unpack(batch, rows, length);
    std::string all;
    for (size_t n = 0; n < packed.tokens.size(); ++n) {
      const std::vector<int64_t>&tokens = packed.tokens[n], &targets = packed.targets[n];
      all += text_of(tokens);
      const size_t at = stream.find(text_of(tokens));
      ASSERT_NE(at, std::string::npos) << "a piece of one document: " << text_of(tokens);
      for (size_t t = 0; t < tokens.size(); ++t) {
        const bool last = stream[at + t] == 'T' || stream[at + t] == '5' || stream[at + t] == 'i';
        EXPECT_EQ(targets[t], last ? kNoTarget : stream[at + t + 1]) << text_of(tokens);
        EXPECT_FALSE(last && t + 1 < tokens.size()) << "a document ends where its text does";
      }
    }
    // Every row continues around the stream, from every position with equal probability; an epoch
    // covers all of it.
    std::vector<double> starts(stream.size());
    for (int64_t r = 0; r < rows; ++r) {
      const std::string row =
          all.substr(static_cast<size_t>(r * length), static_cast<size_t>(length));
      const size_t start = stream.find(row[0]);
      starts[start] += 1;
      for (size_t t = 0; t < row.size(); ++t) {
        ASSERT_EQ(row[t], stream[(start + t) % stream.size()]);
      }
    }
    expect_uniform(starts);
    EXPECT_EQ(batch.slices.ne(kNoSlice).sum().item<int64_t>(), 0);
  }
}

TEST_F(TextTest, APackedRowDependsOnItsNumberAlone) {
  write("docs/a", letters('A', 20));
  write("docs/b", letters('a', 7));
  const std::string path = folder_ / "docs";
  const Task task = text_task({.path = path, .valid = path, .length = 16, .documents = "files"});
  const Batch few = task.sample(3, 8), many = task.sample(50, 8), other = task.sample(3, 9);
  EXPECT_TRUE(torch::equal(few.tokens, many.tokens.slice(1, 0, 48)));
  EXPECT_TRUE(torch::equal(few.targets, many.targets.slice(1, 0, 48)));
  const at::Tensor ends = many.cu_seqlens.value();
  EXPECT_TRUE(torch::equal(few.cu_seqlens.value(), ends.masked_select(ends.le(48))));
  EXPECT_FALSE(torch::equal(few.tokens, other.tokens));
  EXPECT_EQ(error_of([&] { task.sample(0, 0); }), "batch = 0: must be at least 1");
}

TEST_F(TextTest, ASeparatorEndsADocumentAndStaysWithIt) {
  const std::string text = "ABC||DEFG||||HIJK||LMN";
  const std::string path = write("x", text), valid = write("y", "abc||def");
  const Task task = text_task(
      {.path = path, .valid = valid, .length = 40, .documents = "separated", .separator = "||"});
  std::set<std::string> whole;
  const Packed packed = unpack(task.sample(50, 0), 50, 40);
  for (size_t n = 0; n < packed.tokens.size(); ++n) {
    const std::string document = text_of(packed.tokens[n]);
    EXPECT_NE(text.find(document), std::string::npos);
    if (document[0] == 'D' && packed.targets[n].back() == kNoTarget) whole.insert(document);
    const size_t end = document.find("||");
    if (end != std::string::npos && end > 0) {
      EXPECT_EQ(document.find_first_not_of('|', end), std::string::npos) << document;
    }
  }
  EXPECT_EQ(whole, std::set<std::string>{"DEFG||||"});
  // Held-out text is packed the same way; where it is a part of the file, it is cut between
  // documents.
  for (const std::vector<int64_t>& tokens : unpack(task.sample_held_out(50, 0), 50, 40).tokens) {
    EXPECT_NE(std::string("abc||def").find(text_of(tokens)), std::string::npos);
  }
  const Task part = text_task({.path = path,
                               .valid_fraction = 0.3,
                               .length = 4,
                               .documents = "separated",
                               .separator = "||"});
  for (const std::vector<int64_t>& tokens : unpack(part.sample_held_out(50, 0), 50, 4).tokens) {
    EXPECT_NE(std::string("LMN").find(text_of(tokens)), std::string::npos);
  }
}

TEST_F(TextTest, TheLastTokenAsksForTheEndOfTheDocument) {
  const std::string text = text::made_up_text(300);
  const std::string path = write("train.txt", text);
  const std::string held = text::made_up_text(30, 5), valid = write("valid.txt", held);
  text::TokenizerTraining training{.vocabulary = 300};
  for (const bool end : {false, true}) {
    training.end_of_document = end;
    const std::string bytes = text::train_tokenizer(text::list_documents(path, "path"), training);
    const std::string model = write("x.model", bytes);
    const Task task = text_task({.path = path,
                                 .valid = valid,
                                 .tokenizer = model,
                                 .length = 50,
                                 .cache = folder_ / "cache",
                                 .documents = "separated",
                                 .separator = "\n"});
    const text::Tokenizer tokenizer(bytes);
    const Packed packed = unpack(task.sample(40, 0), 40, 50);
    int64_t ends = 0;
    for (size_t n = 0; n < packed.tokens.size(); ++n) {
      const std::string document = tokenizer.decode(packed.tokens[n]);
      const size_t at = document.find('\n');
      EXPECT_NE(text.find(document), std::string::npos);
      if (at == std::string::npos) continue;  // cut off by the end of its row
      EXPECT_EQ(at + 1, document.size());
      EXPECT_EQ(packed.targets[n].back(), end ? 1 : kNoTarget);
      ++ends;
    }
    EXPECT_GT(ends, 40);
    // For each line, all tokens but the first are asked, and its end if that is a token.
    double asked = 0, unasked_bytes = 0;
    std::istringstream lines(held);
    for (std::string line; std::getline(lines, line);) {
      const std::vector<int64_t> tokens = tokenizer.encode(line + "\n");
      asked += static_cast<double>(tokens.size()) - (end ? 0 : 1);
      unasked_bytes += static_cast<double>(tokenizer.bytes(tokens[0]).size());
    }
    EXPECT_DOUBLE_EQ(task.bytes_per_token,
                     (static_cast<double>(held.size()) - unasked_bytes) / asked);
  }
}

TEST_F(TextTest, ErrorsOfDocuments) {
  const std::string path = write("x", "one\n\ntwo\n");
  const auto error = [&](TextConfig config) {
    config.path = config.valid = path;
    return error_of([&] { text_task(config, "task."); });
  };
  EXPECT_EQ(error({.documents = "separated", .separator = "\n\n"}), "");
  EXPECT_EQ(error({.documents = "file"}),
            "task.documents = 'file': must be a known name; did you mean 'files'?");
  EXPECT_EQ(error({.documents = "separated"}),
            "task.separator = \"\": must be the string that ends a document, such as \"\\n\\n\"");
  EXPECT_EQ(error({.documents = "files", .separator = "\n"}),
            "task.separator = \"\\n\": applies only to documents = 'separated', not to 'files'");
  EXPECT_EQ(error({.separator = "-"}),
            "task.separator = '-': applies only to documents = 'separated', not to 'none'");
  EXPECT_EQ(error({.documents = "separated", .separator = "\r\n"}),
            "task.separator = \"\\r\\n\": must separate documents, but does not occur in the "
            "training text");
  EXPECT_EQ(error({.length = 1, .documents = "files"}),
            "task.length = 1: must be from 2 to 16777216");
  toml::table document = config::parse("name = 'copy'\ndocuments = 'files'", "test");
  config::Table table(document);
  EXPECT_EQ(error_of([&] { make_task(table); }),
            "unknown key 'documents'; known: name, symbols, m");
}

// SentencePiece and libc10 export a variable of the same name and different types. The loader must
// pick SentencePiece's, the only one in use (cmake/FindSentencePiece.cmake).
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
            "task.path = '" + none + "': must be a file or folder of text, but does not exist");
  EXPECT_EQ(error({.path = path, .valid = none}),
            "task.valid = '" + none + "': must be a file or folder of text, but does not exist");
  EXPECT_EQ(error({.path = path, .length = 0}), "task.length = 0: must be from 1 to 16777216");
  for (const double fraction : {0.0, 1.0, std::nan("")}) {
    EXPECT_TRUE(error({.path = path, .valid_fraction = fraction})
                    .ends_with(": must be above 0 and below 1"));
  }
  const std::string one = write("y", "1");
  EXPECT_EQ(error({.path = path, .valid = one}),
            "task.valid = '" + one + "': must have two consecutive tokens");
  EXPECT_EQ(
      error({.path = one, .valid = path}),
      "task.path = '" + one + "': must have two consecutive tokens to train on, and two held out");
  EXPECT_TRUE(error({.path = path, .tokenizer = none}).starts_with("task.tokenizer = '" + none));
  EXPECT_EQ(error_of([&] { text_task({.path = path}).sample(0, 0); }),
            "batch = 0: must be at least 1");
}

}  // namespace
}  // namespace hopmix::tasks
