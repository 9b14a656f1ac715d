#include "hopmix/decode/generate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "hopmix/base/testing.h"
#include "hopmix/base/utf8.h"
#include "hopmix/decode/utf8_stream.h"
#include "hopmix/text/testing.h"
#include "hopmix/text/tokenizer_training.h"

namespace hopmix::decode {
namespace {

std::shared_ptr<nn::LanguageModel> model_of(const std::string& positions = "rope",
                                            int64_t length = 64, int64_t vocabulary = 256) {
  torch::manual_seed(7);
  toml::table document = config::parse(
      "width = 16\npositions = '" + positions +
          "'\nblocks = [{mixer = 'glr', pattern = 'cached(k^2+1)'}, {mixer = 'local_attention', "
          "window = 5}]",
      "test");
  config::Table table(document);
  nn::TaskShape shape;
  shape.vocabulary = vocabulary;
  shape.length = length;
  return nn::make_model(table, shape);
}

// A model that gives each of `bytes` the same probability, whatever it has read.
std::shared_ptr<nn::LanguageModel> model_that_says(const std::string& bytes,
                                                   int64_t vocabulary = 256) {
  const auto model = model_of("rope", 64, vocabulary);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) parameter.zero_();
  torch::Tensor bias = model->named_parameters()["head.bias"];
  bias.fill_(-1e4);
  for (const char byte : bytes) bias[static_cast<unsigned char>(byte)] = 0;
  return model;
}

Generation go(nn::LanguageModel& model, const std::string& prompt, const GenerateConfig& config) {
  std::string shown;
  const Generation made =
      generate(model, text::Tokenizer(), prompt, config, [&](std::string_view piece) {
        EXPECT_FALSE(piece.empty());
        EXPECT_FALSE(first_bad_utf8(piece)) << "a piece is whole characters";
        shown += piece;
      });
  EXPECT_EQ(shown, made.text);
  return made;
}

// The definition: run the whole sequence through the model for each token.
TEST(Generate, GreedyIsTheMostProbableTokenOfAForwardPass) {
  const auto model = model_of();
  const std::string prompt = "To be";
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> tokens = text::Tokenizer().encode(prompt);
  for (int i = 0; i < 40; ++i) {
    const torch::Tensor logits = model->forward(torch::tensor(tokens, torch::kLong).unsqueeze(0));
    tokens.push_back(logits[0][-1].argmax().item<int64_t>());
  }
  Utf8Stream characters;
  std::string expected = characters.push(text::Tokenizer().decode(tokens)) + characters.finish();
  const Generation made = go(*model, prompt, {.tokens = 40, .sampling = {.temperature = 0}});
  EXPECT_EQ(prompt + made.text, expected);
  EXPECT_EQ(made.prompt_tokens, 5);
  EXPECT_EQ(made.tokens, 40);
  EXPECT_FALSE(made.stopped);
  EXPECT_EQ(made.state_bytes, model->state_bytes(44)) << "the last token is not read";
}

TEST(Prefill, IsTheForwardPassAndItsState) {
  const auto model = model_of();
  const torch::NoGradGuard no_grad;
  const torch::Tensor tokens = torch::randint(256, {3, 20}, torch::kLong);
  nn::ModelState state = model->initial_state(3);
  const torch::Tensor first = model->prefill(tokens.slice(1, 0, 12), state);
  EXPECT_EQ(state.position(), 12);
  const torch::Tensor last = model->prefill(tokens.slice(1, 12, 20), state);
  const torch::Tensor logits = model->forward(tokens);
  EXPECT_LT((first - logits.select(1, 11)).abs().max().item<float>(), 1e-4);
  EXPECT_LT((last - logits.select(1, 19)).abs().max().item<float>(), 1e-4);
}

TEST(Generate, TheSameSeedSaysTheSame) {
  const auto model = model_of();
  const std::string text = go(*model, "x", {.tokens = 50, .seed = 3}).text;
  EXPECT_EQ(go(*model, "x", {.tokens = 50, .seed = 3}).text, text);
  EXPECT_NE(go(*model, "x", {.tokens = 50, .seed = 4}).text, text);
}

// The token that ends a document is the last one, and it is not shown.
TEST(Generate, TheEndOfADocumentEndsTheText) {
  const std::string training = text::made_up_text(400);
  const auto folder = std::filesystem::temp_directory_path();
  const std::string file = folder / ("hopmix-generate-" + std::to_string(getpid()));
  write_file(file, training);
  const text::Tokenizer tokenizer(text::train_tokenizer(
      {{file, 0, training.size()}}, {.vocabulary = 300, .end_of_document = true}));
  std::filesystem::remove(file);
  ASSERT_EQ(tokenizer.end_of_document(), 1);
  const auto model = model_that_says("\1", 300);  // its number
  Session session{model->initial_state(1)};
  const auto go_on = [&](const std::string& prompt) {
    return generate(
        *model, tokenizer, prompt, {.tokens = 9}, [](std::string_view) { FAIL(); }, session);
  };
  for (const int64_t again : {1, 2}) {
    const Generation made = go_on("the king");
    EXPECT_TRUE(made.stopped);
    EXPECT_EQ(made.text, "");
    EXPECT_EQ(made.tokens, 1);
    EXPECT_TRUE(session.unread.empty());
    EXPECT_EQ(session.state.position(), again * made.prompt_tokens);
  }
  EXPECT_EQ(error_of([&] { go_on(""); }), "prompt = '': must contain at least one token");
}

// In two parts, the second from a copy: continuing one session does not affect the other.
TEST(Generate, GoesOnWhereASessionEnds) {
  const auto model = model_of();
  const GenerateConfig greedy{.tokens = 60, .sampling = {.temperature = 0}};
  const std::string whole = go(*model, "To be", greedy).text;
  Session session{model->initial_state(1)};
  GenerateConfig part = greedy;
  part.tokens = 25;
  const auto on = [&](Session& at, const std::string& prompt) {
    return generate(
               *model, text::Tokenizer(), prompt, part, [](std::string_view) {}, at)
        .text;
  };
  std::string text = on(session, "To be");
  EXPECT_EQ(session.state.position(), 5 + 25 - 1);
  EXPECT_EQ(session.unread.size(), 1u);
  Session fork = session;
  const std::string elsewhere = on(fork, "or not");
  part.tokens = 35;
  const Generation rest = generate(
      *model, text::Tokenizer(), "", part, [](std::string_view) {}, session);
  EXPECT_EQ(rest.prompt_tokens, 1) << "the one that was not read";
  // A character cut at the end of a part is replaced in both halves.
  if (text::Tokenizer().encode(whole).size() == 60 && !text.ends_with("\uFFFD")) {
    EXPECT_EQ(text + rest.text, whole);
  }
  EXPECT_EQ(session.state.position(), 5 + 60 - 1);
  EXPECT_EQ(fork.state.position(), 29 + 1 + 6 + 24);
}

// After a million tokens, with a pattern that keeps 20 of them.
TEST(Generate, AMillionTokensInConstantMemory) {
  torch::manual_seed(7);
  toml::table document = config::parse(
      "width = 4\nheads = 1\nmlp = 0\npositions = 'none'\n"
      "blocks = [{mixer = 'glr', pattern = 'cached(2^k)'}]",
      "test");
  config::Table table(document);
  nn::TaskShape shape;
  shape.vocabulary = 256;
  shape.length = 64;
  const auto model = nn::make_model(table, shape);
  constexpr int64_t kMillion = int64_t{1} << 20;
  std::string prompt(kMillion, 'a');
  for (int64_t i = 0; i < kMillion; i += 7) prompt[static_cast<size_t>(i)] = 'b';
  Session session{model->initial_state(1)};
  const auto on = [&](const std::string& text, int64_t tokens) {
    return generate(
        *model, text::Tokenizer(), text, {.tokens = tokens}, [](std::string_view) {}, session);
  };
  const int64_t bytes = on(prompt, 1).state_bytes;
  ASSERT_EQ(session.state.position(), kMillion);
  EXPECT_LE(bytes, (21 * (2 * 4 + 1) + 4) * 4) << "21 tokens' k, z and number, and the last input";
  EXPECT_EQ(bytes, model->state_bytes(kMillion));
  EXPECT_EQ(on("", 2000).state_bytes, bytes);
  EXPECT_EQ(session.state.position(), kMillion + 2000);
  for (const auto& [name, tensor] : session.state.blocks[0].tensors) {
    EXPECT_EQ(static_cast<int64_t>(tensor.storage().nbytes()),
              tensor.numel() * tensor.element_size())
        << name << " keeps nothing else alive";
  }
}

TEST(Generate, StopsAcrossTokens) {
  const auto model = model_that_says("ab");
  const Generation free = go(*model, "x", {.tokens = 100, .seed = 1});
  ASSERT_EQ(free.text.size(), 100u);
  const Generation made = go(*model, "x", {.tokens = 100, .seed = 1, .stops = {"abba", "bbbb"}});
  const size_t end = std::min(free.text.find("abba"), free.text.find("bbbb"));
  EXPECT_TRUE(made.stopped);
  EXPECT_EQ(made.text, free.text.substr(0, end));
  EXPECT_EQ(made.tokens, static_cast<int64_t>(end) + 4) << "no token after the stop";
  // Text held back for a stop string that never completes is shown at the end.
  const Generation late =
      go(*model, "x", {.tokens = 100, .seed = 1, .stops = {std::string(150, 'a')}});
  EXPECT_EQ(late.text, free.text);
  EXPECT_FALSE(late.stopped);
}

TEST(Generate, BytesThatAreNoTextAreReplaced) {
  EXPECT_EQ(go(*model_that_says("\xff"), "x", {.tokens = 3}).text, "\uFFFD\uFFFD\uFFFD");
  // Characters that are begun but never completed: one replacement each, the last at the end of the
  // text.
  EXPECT_EQ(go(*model_that_says("\xe6"), "x", {.tokens = 2}).text, "\uFFFD\uFFFD");
}

TEST(Generate, AStopMayBeSeveralBytesOfACharacter) {
  const Generation made = go(*model_that_says("\xc3\xa9"), "x", {.tokens = 500, .stops = {"éé"}});
  EXPECT_TRUE(made.stopped);
  EXPECT_EQ(made.text.find("éé"), std::string::npos);
}

TEST(Generate, FitsAPositionTableToItsLastRow) {
  const auto model = model_of("learned", 10);
  EXPECT_EQ(go(*model, "1234", {.tokens = 7}).tokens, 7);
  EXPECT_EQ(error_of([&] { go(*model, "1234", {.tokens = 8}); }),
            "tokens = 8: must be at most 7 after a prompt of 4: the model's table of learned "
            "positions holds 10 (model.max_length)");
  EXPECT_EQ(go(*model, "1234567890", {.tokens = 1}).tokens, 1);
  EXPECT_EQ(error_of([&] { go(*model, "12345678901", {.tokens = 1}); }),
            "prompt: has 11 tokens, but the model's table of learned positions holds 10 "
            "(model.max_length)");
  EXPECT_EQ(go(*model_of("none", 10), "1234", {.tokens = 30}).tokens, 30);
}

TEST(Generate, Errors) {
  const auto model = model_of();
  EXPECT_EQ(error_of([&] { go(*model, "", {}); }), "prompt = '': must contain at least one token");
  EXPECT_EQ(error_of([&] { go(*model, "caf\xe9", {}); }),
            "prompt: must be UTF-8, but byte 3 is invalid");
  EXPECT_EQ(error_of([&] { go(*model, "x", {.tokens = 0}); }), "tokens = 0: must be at least 1");
  EXPECT_EQ(error_of([&] { go(*model, "x", {.sampling = {.top_p = 2}}); }),
            "top_p = 2: must be above 0 and at most 1");
}

}  // namespace
}  // namespace hopmix::decode
