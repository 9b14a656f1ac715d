#include "hopmix/text/documents.h"

#include <gtest/gtest.h>

#include <thread>

#include "hopmix/base/testing.h"
#include "hopmix/text/testing.h"
#include "hopmix/text/tokenizer_training.h"

namespace hopmix::text {
namespace {

namespace fs = std::filesystem;

using DocumentsTest = FolderTest;

std::vector<std::string> names(const std::vector<Document>& documents) {
  std::vector<std::string> result;
  for (const Document& document : documents) result.push_back(document.file.filename());
  return result;
}

std::string text_of(const Document& document) {
  return read_file(document.file).substr(document.begin, document.size());
}

std::vector<int64_t> all(const Tokens& tokens) {
  std::vector<int64_t> out(static_cast<size_t>(tokens.size()));
  tokens.copy(0, out);
  return out;
}

TEST_F(DocumentsTest, FilesBelowAFolderByPath) {
  for (const char* name : {"b.txt", "a/2", "a/10", "c", ".hidden", ".git/x"}) write(name, name);
  write("empty", "");
  const std::vector<Document> found = list_documents(folder_, "path");
  EXPECT_EQ(names(found), (std::vector<std::string>{"10", "2", "b.txt", "c"}));
  EXPECT_EQ(text_of(found[0]), "a/10");
  EXPECT_EQ(total_size(found), 4u + 3 + 5 + 1);
  EXPECT_EQ(names(list_documents(folder_ / ".hidden", "path")),
            std::vector<std::string>{".hidden"});
}

TEST_F(DocumentsTest, ErrorsNameTheKey) {
  const std::string none = (folder_ / "none").string();
  EXPECT_EQ(error_of([&] { list_documents(none, "task.path"); }),
            "task.path = '" + none + "': must be a file or folder of text, but does not exist");
  for (const fs::path& path : {folder_, write("empty", "")}) {
    EXPECT_EQ(error_of([&] { list_documents(path, "task.path"); }),
              "task.path = '" + path.string() + "': must contain text, but is empty");
  }
}

TEST_F(DocumentsTest, HoldsOutWholeDocumentsFromTheEnd) {
  for (const char* name : {"a", "b", "c", "d"}) write(name, std::string(100, 'x'));
  const std::vector<Document> documents = list_documents(folder_, "path");
  for (const auto& [fraction, held] : std::vector<std::pair<double, size_t>>{
           {0.001, 1}, {0.25, 1}, {0.26, 2}, {0.5, 2}, {0.75, 3}, {0.99, 3}}) {
    const auto [kept, held_out] = hold_out(documents, fraction);
    EXPECT_EQ(held_out.size(), held) << fraction;
    EXPECT_EQ(kept.size(), 4 - held);
    EXPECT_EQ(kept.front().file.filename(), "a");
    EXPECT_EQ(held_out.back().file.filename(), "d");
  }
}

TEST_F(DocumentsTest, CutsASingleDocumentAtALine) {
  const auto cut = [&](const std::string& text, double fraction) {
    const auto [kept, held] = hold_out(list_documents(write("x", text), "path"), fraction);
    EXPECT_EQ(text_of(kept[0]) + text_of(held[0]), text);
    return text_of(held[0]);
  };
  EXPECT_EQ(cut("one\ntwo\nthree\nfour\n", 0.5), "four\n");          // wanted at byte 9, in three
  EXPECT_EQ(cut("one\ntwo\nthree\nfour\n", 0.78), "three\nfour\n");  // at byte 4, where two begins
  EXPECT_EQ(cut("one line\n", 0.5), "line\n");
  EXPECT_EQ(cut("éééé", 0.4), "éé");    // wanted at byte 4.8, between two characters
  EXPECT_EQ(cut("éééé", 0.625), "éé");  // at byte 3, within one
}

TEST(PartEnds, BehindEachSeparator) {
  using Ends = std::vector<size_t>;
  EXPECT_EQ(part_ends("a||b||c", "||"), (Ends{3, 6, 7}));
  EXPECT_EQ(part_ends("a||b||", "||"), (Ends{3, 6}));
  EXPECT_EQ(part_ends("a|b|c", "||"), Ends{5});
  EXPECT_EQ(part_ends("a||b", ""), Ends{4});
  EXPECT_EQ(part_ends("a\nb\n", "\n"), (Ends{2, 4}));
  EXPECT_EQ(part_ends("", "||"), Ends{0});
  // Several separators in a row end one part, and no part consists of separators only.
  EXPECT_EQ(part_ends("a||||b", "||"), (Ends{5, 6}));
  EXPECT_EQ(part_ends("a|||b", "||"), (Ends{3, 5}));
  EXPECT_EQ(part_ends("||a||b", "||"), (Ends{5, 6}));
  EXPECT_EQ(part_ends("||||", "||"), Ends{4});
  EXPECT_EQ(part_ends("aaaa", "aa"), Ends{4});
}

TEST_F(DocumentsTest, CutsASingleDocumentBehindASeparator) {
  const auto cut = [&](const std::string& text, double fraction) {
    const auto [kept, held] = hold_out(list_documents(write("x", text), "path"), fraction, "||");
    EXPECT_EQ(text_of(kept[0]) + text_of(held[0]), text);
    return text_of(held[0]);
  };
  EXPECT_EQ(cut("one\ntwo||three\nfour||five", 0.8), "three\nfour||five");
  EXPECT_EQ(cut("one\ntwo||three\nfour||five", 0.5), "five");
  EXPECT_EQ(cut("one\ntwo||three\nfour||", 0.5), "four||") << "at a line if there is no other";
}

TEST_F(DocumentsTest, PartsOfBytesAndSubwords) {
  std::string text, part;
  std::vector<std::string> parts;
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    parts.push_back(made_up_text(3 * seed, seed) + "--");
    text += parts.back();
  }
  parts.back().resize(parts.back().size() - 2);
  text.resize(text.size() - 2);
  const Document whole{write("x", "12" + text + "34"), 2, 2 + text.size()};
  const Tokenizer subwords(train_tokenizer({whole}, {.vocabulary = 300}));
  const fs::path cache = folder_ / "cache";
  for (const Tokenizer& tokenizer : {Tokenizer(), subwords}) {
    for (int again = 0; again < 2; ++again) {
      const Tokens tokens = open_tokens(whole, tokenizer, cache, "--");
      ASSERT_EQ(tokens.ends().size(), parts.size());
      EXPECT_EQ(tokens.ends().back(), tokens.size());
      int64_t begin = 0;
      for (size_t p = 0; p < parts.size(); ++p) {
        std::vector<int64_t> one(static_cast<size_t>(tokens.ends()[p] - begin));
        tokens.copy(begin, one);
        EXPECT_EQ(one, tokenizer.encode(parts[p])) << p;
        begin = tokens.ends()[p];
      }
    }
    EXPECT_EQ(open_tokens(whole, tokenizer, cache).ends(),
              std::vector<int64_t>{open_tokens(whole, tokenizer, cache).size()});
  }
  // Each separator has its own entry, made once; an invalid entry is made again.
  const auto entries = [&] {
    return std::vector<fs::path>(fs::directory_iterator(cache), fs::directory_iterator());
  };
  EXPECT_EQ(entries().size(), 2u);
  const Tokens right = open_tokens(whole, subwords, cache, "--");
  EXPECT_EQ(entries().size(), 2u);
  const Tokens lines = open_tokens(whole, subwords, cache, "\n");
  EXPECT_EQ(entries().size(), 3u);
  EXPECT_EQ(lines.ends().size(), 3u + 6 + 9 + 12 + 15);
  const int64_t many = 1000000;
  const std::string count(reinterpret_cast<const char*>(&many), sizeof many);
  for (const fs::path& entry : entries()) {
    const std::string bytes = read_file(entry);
    for (const std::string& broken :
         {std::string(), bytes.substr(0, 16), bytes.substr(0, bytes.size() - 8),
          bytes.substr(0, bytes.size() - 8) + count, bytes.substr(0, bytes.size() - 1),
          bytes.substr(0, 16) + bytes.substr(18)}) {
      write_file(entry, broken);
      const Tokens again = open_tokens(whole, subwords, cache, "--");
      EXPECT_EQ(all(again), all(right));
      EXPECT_EQ(again.ends(), right.ends());
    }
    write_file(entry, bytes);
  }
}

TEST_F(DocumentsTest, BytesAreReadWhereTheyLie) {
  const Document document{write("x", "abc\xff\n"), 1, 4};
  const Tokens tokens = open_tokens(document, Tokenizer(), folder_ / "cache");
  EXPECT_EQ(all(tokens), (std::vector<int64_t>{'b', 'c', 255}));
  EXPECT_FALSE(fs::exists(folder_ / "cache"));
}

TEST_F(DocumentsTest, SubwordsAreKept) {
  const std::string text = made_up_text(40000);  // over a piece of what is encoded at once
  ASSERT_GT(text.size(), size_t{1} << 20);
  const Document document{write("x", text), 10, text.size() - 10};
  const Tokenizer tokenizer(
      train_tokenizer({{document.file, 0, size_t{20000}}}, {.vocabulary = 300}));
  const fs::path cache = folder_ / "deep" / "cache";
  const std::vector<int64_t> tokens = all(open_tokens(document, tokenizer, cache));
  EXPECT_EQ(tokens, tokenizer.encode(text_of(document)));

  const auto entries = [&] {
    return std::vector<fs::path>(fs::directory_iterator(cache), fs::directory_iterator());
  };
  ASSERT_EQ(entries().size(), 1u);
  const fs::path entry = entries()[0];
  const auto made = fs::last_write_time(entry);
  EXPECT_EQ(fs::file_size(entry), 16 + 2 * tokens.size() + 8 + 24);
  EXPECT_EQ(all(open_tokens(document, tokenizer, cache)), tokens);
  EXPECT_EQ(fs::last_write_time(entry), made) << "it was made again";

  // Starting in the middle.
  std::vector<int64_t> some(100);
  open_tokens(document, tokenizer, cache).copy(1000, some);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), tokens.begin() + 1000));

  // Another range, another model, a changed text: each gets its own entry.
  open_tokens({document.file, 0, 100}, tokenizer, cache);
  EXPECT_EQ(entries().size(), 2u);
  const Tokenizer other(train_tokenizer({{document.file, 0, 20000}}, {.vocabulary = 301}));
  open_tokens(document, other, cache);
  EXPECT_EQ(entries().size(), 3u);
  std::string changed = text;
  changed[50] = '!';
  write("x", changed);
  EXPECT_EQ(all(open_tokens(document, tokenizer, cache)), tokenizer.encode(text_of(document)));
  EXPECT_EQ(entries().size(), 4u);
}

TEST_F(DocumentsTest, AnEntryThatIsNoneIsMadeAgain) {
  const Document document{write("x", made_up_text(200)), 0, 1000};
  const Tokenizer tokenizer(train_tokenizer({document}, {.vocabulary = 290}));
  const fs::path cache = folder_ / "cache";
  const std::vector<int64_t> tokens = all(open_tokens(document, tokenizer, cache));
  const fs::path entry = *fs::directory_iterator(cache);
  const std::string whole = read_file(entry);
  std::vector<std::string> broken = {"", "hopmixT1", "something else, long enough to be read"};
  // Cut short on the disk, by a few tokens or by many; with one token changed.
  for (const size_t bytes : {1, 2, 24, 100, 200})
    broken.push_back(whole.substr(0, whole.size() - bytes));
  broken.push_back(whole);
  broken.back()[40] ^= 1;
  for (const std::string& bytes : broken) {
    write_file(entry, bytes);
    EXPECT_EQ(all(open_tokens(document, tokenizer, cache)), tokens);
    EXPECT_EQ(read_file(entry), whole);
  }
}

// The time of a change says nothing: a copy may keep it.
TEST_F(DocumentsTest, AnEntryBelongsToAContent) {
  const std::string text = made_up_text(200, 1), other = made_up_text(200, 2);
  const size_t size = std::min(text.size(), other.size());
  const Document document{write("x", text.substr(0, size)), 0, size};
  const Tokenizer tokenizer(train_tokenizer({document}, {.vocabulary = 290}));
  const fs::path cache = folder_ / "cache";
  open_tokens(document, tokenizer, cache);
  const auto time = fs::last_write_time(document.file);
  write("x", other.substr(0, size));
  fs::last_write_time(document.file, time);
  EXPECT_EQ(all(open_tokens(document, tokenizer, cache)), tokenizer.encode(other.substr(0, size)));
}

TEST_F(DocumentsTest, WhatAKilledTokenizationLeavesIsRemoved) {
  const Document document{write("x", made_up_text(200)), 0, 1000};
  const Tokenizer tokenizer(train_tokenizer({document}, {.vocabulary = 290}));
  write("cache/old-0123456789abcdef.tokens.tmp", "half a file");
  open_tokens(document, tokenizer, folder_ / "cache");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "cache"), fs::directory_iterator()), 1);
}

TEST_F(DocumentsTest, ADigestTellsTextsApart) {
  write("a/one", "abc");
  write("a/two", "de");
  const auto of = [&](const std::string& name) {
    return digest(list_documents(folder_ / name, "path"), folder_ / name);
  };
  const Digest before = of("a");
  EXPECT_EQ(before.bytes, 5);
  EXPECT_EQ(of("a"), before);
  fs::copy(folder_ / "a", folder_ / "moved");
  EXPECT_EQ(of("moved"), before) << "where it lies does not matter";
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"a/one", "abd"}, {"a/one", "ab"}, {"a/three", "x"}};
  for (const auto& [name, bytes] : changes) {
    const bool fresh = !fs::exists(folder_ / name);
    write(name, bytes);
    EXPECT_NE(of("a"), before) << name << " " << bytes;
    fresh ? (void)fs::remove(folder_ / name) : (void)write(name, "abc");
  }
  EXPECT_EQ(of("a"), before);
  write("a/one", "abcd");  // the same bytes in other files
  write("a/two", "e");
  EXPECT_NE(of("a"), before);
}

TEST_F(DocumentsTest, ManyMayMakeAnEntryAtOnce) {
  const std::string text = made_up_text(2000);
  const Document document{write("x", text), 0, text.size()};
  const Tokenizer tokenizer(train_tokenizer({document}, {.vocabulary = 290}));
  const std::vector<int64_t> tokens = tokenizer.encode(text);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back(
        [&] { EXPECT_EQ(all(open_tokens(document, tokenizer, folder_ / "cache")), tokens); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(DocumentsTest, ACacheThatCannotBeMade) {
  const Document document{write("x", made_up_text(200)), 0, 1000};
  const Tokenizer tokenizer(train_tokenizer({document}, {.vocabulary = 290}));
  const fs::path cache = folder_ / "x" / "cache";  // below a file
  EXPECT_EQ(error_of([&] { open_tokens(document, tokenizer, cache); }),
            "cannot create '" + cache.string() + "': Not a directory");
}

}  // namespace
}  // namespace hopmix::text
