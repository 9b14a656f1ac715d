#include "hopmix/text/tokenizer.h"

#include <gtest/gtest.h>

#include "hopmix/base/testing.h"
#include "hopmix/text/testing.h"
#include "hopmix/text/tokenizer_training.h"

namespace hopmix::text {
namespace {

class TokenizerTest : public FolderTest {
 protected:
  std::string train(const TokenizerTraining& config, const std::string& text = made_up_text(400)) {
    return train_tokenizer(list_documents(write("train.txt", text), "path"), config);
  }
};

// Every byte, lines with and without ends, spaces that a normalization would remove, characters
// that no model has seen.
std::vector<std::string> awkward() {
  return {"",
          " ",
          "\n",
          "\n\n\n",
          "the king",
          "  two  spaces  ",
          "\t",
          "no end",
          "end\n",
          "the\nking\r\n",
          "ﬁ ℌ ½ e\u0301",
          "日本",
          "🂡 of\u00a0x",
          "THE\u3000KING",
          "\u2581",
          "the\u2581king  \u2581\u2581 says \u2581\n\u2581",
          "\u2047 \u2585 \uFFFD <unk> <0x41> </s>",
          std::string("a\0b", 3),
          "caf\xe9 \xff\xfe\n\xe2\x96",
          std::string(20000, 'a')};
}

TEST(BytesTokenizer, IsTheBytes) {
  const Tokenizer bytes;
  EXPECT_TRUE(bytes.is_bytes());
  EXPECT_EQ(bytes.vocabulary(), 256);
  EXPECT_EQ(bytes.model(), "");
  EXPECT_EQ(bytes.encode("a\xff"), (std::vector<int64_t>{97, 255}));
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(bytes.decode(bytes.encode(all)), all);
}

TEST_F(TokenizerTest, LosesNothing) {
  for (const char* type : {"unigram", "bpe"}) {
    const Tokenizer tokenizer(train({.vocabulary = 300, .type = type}));
    EXPECT_FALSE(tokenizer.is_bytes());
    EXPECT_EQ(tokenizer.vocabulary(), 300);
    for (const std::string& text : awkward()) {
      const std::vector<int64_t> tokens = tokenizer.encode(text);
      EXPECT_EQ(tokenizer.decode(tokens), text) << type;
      for (const int64_t token : tokens) {
        EXPECT_GT(token, 0) << "the unknown token";
        EXPECT_LT(token, tokenizer.vocabulary());
      }
    }
    const std::string seen = made_up_text(50, 9);
    EXPECT_LT(tokenizer.encode(seen).size(), seen.size() * 3 / 4) << type << " learnt words";
  }
}

// Encoding a text in pieces that end at lines gives the same tokens; files are encoded this way.
TEST_F(TokenizerTest, AnEndOfADocumentIsInNoText) {
  EXPECT_FALSE(Tokenizer().end_of_document());
  EXPECT_FALSE(Tokenizer(train({.vocabulary = 300})).end_of_document());
  for (const char* type : {"unigram", "bpe"}) {
    const Tokenizer tokenizer(train({.vocabulary = 300, .type = type, .end_of_document = true}));
    EXPECT_EQ(tokenizer.vocabulary(), 300);
    ASSERT_EQ(tokenizer.end_of_document(), 1);
    EXPECT_EQ(tokenizer.bytes(1), "");
    std::vector<std::string> texts = awkward();
    texts.push_back("the king </s> the queen");
    for (const std::string& text : texts) {
      const std::vector<int64_t> tokens = tokenizer.encode(text);
      EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 1), 0) << text;
      EXPECT_EQ(tokenizer.decode(tokens), text) << type;
    }
  }
}

TEST_F(TokenizerTest, LinesAreApart) {
  const Tokenizer tokenizer(train({.vocabulary = 300}));
  std::vector<int64_t> tokens = tokenizer.encode("the king\n");
  tokenizer.encode(" speaks\n\nsoftly", tokens);
  EXPECT_EQ(tokens, tokenizer.encode("the king\n speaks\n\nsoftly"));
}

TEST_F(TokenizerTest, TheSameTextGivesTheSameModel) {
  EXPECT_EQ(train({.vocabulary = 290}), train({.vocabulary = 290}));
}

TEST_F(TokenizerTest, LearnsFromLinesOfAnyLength) {
  std::string text = made_up_text(400);
  for (char& c : text) c = c == '\n' ? ' ' : c;  // one line
  const Tokenizer tokenizer(train({.vocabulary = 290}, text));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  EXPECT_LT(tokenizer.encode(text).size(), text.size() * 3 / 4);
}

TEST_F(TokenizerTest, LoadsFromAFile) {
  const std::string model = train({.vocabulary = 290});
  const std::filesystem::path path = write("x.model", model);
  const Tokenizer tokenizer = Tokenizer::load(path);
  EXPECT_EQ(tokenizer.model(), model);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("the queen")), "the queen");
  EXPECT_TRUE(Tokenizer::load("bytes").is_bytes());
}

TEST_F(TokenizerTest, Errors) {
  const std::string none = (folder_ / "none").string();
  EXPECT_EQ(error_of([&] { Tokenizer::load(none, "task.tokenizer"); }),
            "task.tokenizer = '" + none +
                "': must be bytes or the path of a SentencePiece model: cannot read '" + none +
                "': No such file or directory");
  for (const char* bytes : {"", "no model at all"}) {
    const std::string path = write("bad", bytes).string();
    EXPECT_EQ(error_of([&] { Tokenizer::load(path); }),
              "tokenizer = '" + path + "': is not a SentencePiece model");
  }
  const std::string cut = train({.vocabulary = 290}).substr(0, 2000);
  EXPECT_EQ(error_of([&] { Tokenizer{cut}; }), "tokenizer: is not a SentencePiece model");

  for (const int64_t vocabulary : {-1, 0, 257}) {
    EXPECT_EQ(error_of([&] { train({.vocabulary = vocabulary}); }),
              "vocabulary = " + std::to_string(vocabulary) +
                  ": must be above 257, the bytes and the unknown token");
  }
  EXPECT_EQ(error_of([&] { train({.vocabulary = int64_t{1} << 40}); }),
            "vocabulary = 1099511627776: must be at most 2147483647");
  for (const char* type : {"unigram", "bpe"}) {
    const std::string few = error_of([&] { train({.vocabulary = 260, .type = type}); });
    EXPECT_TRUE(few.starts_with("vocabulary = 260: must be at least 2")) << few;
    EXPECT_TRUE(few.ends_with(", one token for each character of the text")) << few;
    const std::string many = error_of([&] { train({.vocabulary = 5000, .type = type}); });
    EXPECT_TRUE(many.starts_with("vocabulary = 5000: must be at most ")) << many;
    EXPECT_TRUE(many.ends_with(": the text has no more pieces")) << many;
  }
}

TEST_F(TokenizerTest, ATextWithoutCharactersIsAnError) {
  for (const std::string text : {"\n\n\n\n", "\t\t\n\t\n", "\r\n", "\u2585\n\u2581"}) {
    for (const char* type : {"unigram", "bpe"}) {
      EXPECT_EQ(error_of([&] { train({.vocabulary = 300, .type = type}, text); }),
                text == "\r\n"
                    ? "vocabulary = 300: must be at most 258: the text has no more pieces"
                    : "the text must have characters besides tabs and line ends")
          << text;
    }
  }
  // Few characters among many tabs.
  std::string text(30000, '\t');
  text += "the king\nthe king\nthe queen\n";
  for (const char* type : {"unigram", "bpe"}) {
    const Tokenizer tokenizer(train({.vocabulary = 267, .type = type}, text));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

}  // namespace
}  // namespace hopmix::text
