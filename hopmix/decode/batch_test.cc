#include "hopmix/decode/batch.h"

#include <gtest/gtest.h>

#include "hopmix/base/testing.h"
#include "hopmix/base/utf8.h"
#include "hopmix/decode/generate.h"

namespace hopmix::decode {
namespace {

constexpr GenerateConfig kGreedy{.tokens = 30, .sampling = {.temperature = 0}};

// In float64: rounding does not decide between two tokens.
std::shared_ptr<nn::LanguageModel> model_of(const std::string& blocks,
                                            const std::string& positions = "rope",
                                            int64_t length = 64) {
  torch::manual_seed(7);
  toml::table document = config::parse(
      "width = 16\npositions = '" + positions + "'\nblocks = [" + blocks + "]", "test");
  config::Table table(document);
  nn::TaskShape shape;
  shape.vocabulary = 256;
  shape.length = length;
  const auto model = nn::make_model(table, shape);
  model->to(torch::kFloat64);
  return model;
}

const char* kBlocks =
    "{mixer = 'glr', pattern = 'cached(k^2+1)'}, {mixer = 'attention'}, {mixer = 'gated_deltanet'}";

Generation alone(nn::LanguageModel& model, const std::string& prompt,
                 const GenerateConfig& config) {
  return generate(model, text::Tokenizer(), prompt, config, [](std::string_view) {});
}

// What each sequence of a batch produced, and how it left.
struct Heard {
  std::map<int64_t, std::string> said;
  std::map<int64_t, Batch::Left> left;

  void step(Batch& batch) {
    const int64_t running = batch.size();
    int64_t before = -1;
    const std::vector<Batch::Piece> pieces = batch.step();
    EXPECT_EQ(static_cast<int64_t>(pieces.size()), running);
    for (const Batch::Piece& piece : pieces) {
      EXPECT_LT(before, piece.id);
      EXPECT_FALSE(left.contains(piece.id)) << "gone";
      EXPECT_FALSE(first_bad_utf8(piece.text)) << "a piece is whole characters";
      before = piece.id;
      said[piece.id] += piece.text;
      if (piece.left) left.emplace(piece.id, *piece.left);
    }
  }
  void finish(Batch& batch) {
    while (batch.size() > 0) step(batch);
  }
};

void expect_same(const Generation& made, const Generation& expected, const std::string& said) {
  EXPECT_EQ(made.text, expected.text);
  EXPECT_EQ(said, expected.text);
  EXPECT_EQ(made.prompt_tokens, expected.prompt_tokens);
  EXPECT_EQ(made.tokens, expected.tokens);
  EXPECT_EQ(made.stopped, expected.stopped);
  EXPECT_EQ(made.state_bytes, expected.state_bytes);
}

// Prompts of different lengths that join and end at different steps.
TEST(Batch, TextsAreThoseOfEachAloneWithEveryMixer) {
  const std::vector<std::string> prompts = {"To be, or not", "x", "The king says", "Hélas",
                                            "one two three four five six"};
  for (const nn::MixerEntry& entry : nn::mixers()) {
    SCOPED_TRACE(entry.name);
    const std::string one = "{mixer = '" + entry.name + "'";
    const auto model = model_of(
        entry.reads_mem ? "{mixer = 'attention', mem = 'm', heads = 2}, " + one + ", mem = 'm'}"
                        : one + "}, {mixer = 'local_attention', window = 4}");
    Batch batch(*model, text::Tokenizer());
    Heard heard;
    std::vector<GenerateConfig> configs;
    for (size_t i = 0; i < prompts.size(); ++i) {
      GenerateConfig& config = configs.emplace_back(kGreedy);
      config.tokens = 12 + static_cast<int64_t>(7 * i % 16);
      EXPECT_EQ(batch.join(prompts[i], config), static_cast<int64_t>(i));
      for (size_t steps = 0; steps < 3 * i; ++steps) heard.step(batch);
    }
    heard.finish(batch);
    ASSERT_EQ(heard.left.size(), prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto id = static_cast<int64_t>(i);
      expect_same(heard.left.at(id).made, alone(*model, prompts[i], configs[i]), heard.said[id]);
      EXPECT_EQ(heard.left.at(id).error, "");
    }
  }
}

TEST(Batch, EachHasItsOwnSamplingSeedAndStops) {
  const auto model = model_of(kBlocks);
  const std::string whole = alone(*model, "To be", {.tokens = 200, .seed = 3}).text;
  const std::vector<GenerateConfig> configs = {
      {.tokens = 200, .seed = 3},
      {.tokens = 200, .seed = 3, .stops = {whole.substr(whole.size() / 2, 4), "never"}},
      {.tokens = 200, .seed = 4},
      {.tokens = 150, .sampling = {.temperature = 0.7, .top_k = 5, .top_p = 0.8}, .seed = 3},
      {.tokens = 100, .sampling = {.temperature = 0}}};
  Batch batch(*model, text::Tokenizer());
  Heard heard;
  for (const GenerateConfig& config : configs) batch.join("To be", config);
  heard.finish(batch);
  for (size_t i = 0; i < configs.size(); ++i) {
    const auto id = static_cast<int64_t>(i);
    expect_same(heard.left.at(id).made, alone(*model, "To be", configs[i]), heard.said[id]);
  }
  EXPECT_TRUE(heard.left.at(1).made.stopped);
  EXPECT_LT(heard.left.at(1).made.tokens, 200);
  EXPECT_NE(heard.left.at(0).made.text, heard.left.at(2).made.text);
}

TEST(Batch, OneThatLeavesGoesOnElsewhere) {
  const auto model = model_of(kBlocks);
  const std::string whole = alone(*model, "To be", kGreedy).text;
  Batch batch(*model, text::Tokenizer());
  Heard heard;
  const int64_t first = batch.join("To be", kGreedy), second = batch.join("Hélas", kGreedy);
  for (int i = 0; i < 11; ++i) heard.step(batch);
  const Batch::Left left = batch.leave(first);
  EXPECT_EQ(left.made.tokens, 11);
  EXPECT_EQ(left.session.state.position(), 5 + 10);
  EXPECT_EQ(left.session.unread.size(), 1u);
  EXPECT_EQ(left.made.state_bytes, model->state_bytes(15));
  EXPECT_EQ(error_of([&] { batch.leave(first); }),
            "sequence 0: is not in the batch; it left or never joined");
  GenerateConfig rest = kGreedy;
  rest.tokens = 19;
  const int64_t again = batch.join("", rest, left.session);
  EXPECT_EQ(again, 2);
  heard.finish(batch);
  EXPECT_EQ(heard.left.at(second).made.text, alone(*model, "Hélas", kGreedy).text);
  EXPECT_EQ(heard.left.at(again).made.prompt_tokens, 1) << "the one that was not read";
  EXPECT_EQ(heard.left.at(again).session.state.position(), 5 + 29);
  // Compare tokens, not text: a character cut in two is replaced in both halves.
  EXPECT_EQ(heard.left.at(again).session.unread, [&] {
    Session session{model->initial_state(1)};
    generate(
        *model, text::Tokenizer(), "To be", kGreedy, [](std::string_view) {}, session);
    return session.unread;
  }());
}

// The shared prompt is read once, and one sequence forks in the middle of its text.
TEST(Batch, Forks) {
  const auto model = model_of(kBlocks);
  const GenerateConfig other{.tokens = 30, .seed = 9};
  Batch batch(*model, text::Tokenizer());
  Heard heard;
  const int64_t first = batch.join("To be", kGreedy), at_once = batch.fork(first, other);
  for (int i = 0; i < 10; ++i) heard.step(batch);
  GenerateConfig rest = kGreedy;
  rest.tokens = 20;
  const int64_t later = batch.fork(first, rest), drawn = batch.fork(first, other);
  heard.finish(batch);
  expect_same(heard.left.at(first).made, alone(*model, "To be", kGreedy), heard.said[first]);
  EXPECT_EQ(heard.left.at(at_once).made.text, alone(*model, "To be", other).text);
  EXPECT_EQ(heard.left.at(later).session.unread, heard.left.at(first).session.unread);
  EXPECT_EQ(heard.left.at(later).session.state.position(), 5 + 29);
  EXPECT_NE(heard.left.at(drawn).made.text, heard.left.at(later).made.text);
  for (const auto& [id, left] : heard.left) {
    for (const nn::State& block : left.session.state.blocks) {
      for (const auto& [name, tensor] : block.tensors) {
        EXPECT_EQ(static_cast<int64_t>(tensor.storage().nbytes()),
                  tensor.numel() * tensor.element_size())
            << name << " keeps nothing else alive";
      }
    }
  }
}

// join() fails right away, not the step that reaches the end of the table.
TEST(Batch, OneThatDoesNotFitDoesNotJoin) {
  const auto model = model_of("{mixer = 'glr'}", "learned", 10);
  Batch batch(*model, text::Tokenizer());
  Heard heard;
  GenerateConfig config = kGreedy;
  config.tokens = 7;
  const int64_t first = batch.join("1234", config);
  heard.step(batch);
  const std::string table = "the model's table of learned positions holds 10 (model.max_length)";
  EXPECT_EQ(error_of([&] { batch.join("12345", config); }),
            "tokens = 7: must be at most 6 after a prompt of 5: " + table);
  EXPECT_EQ(error_of([&] { batch.join("12345678901", config); }),
            "prompt: has 11 tokens, but " + table);
  EXPECT_EQ(error_of([&] { batch.fork(first, config); }),
            "tokens = 7: too many after a state of 4 tokens and a prompt of 1: " + table);
  EXPECT_EQ(error_of([&] { batch.join("caf\xe9", config); }),
            "prompt: must be UTF-8, but byte 3 is invalid");
  EXPECT_EQ(error_of([&] { batch.join("", config); }),
            "prompt = '': must contain at least one token");
  config.stops = {""};
  EXPECT_EQ(error_of([&] { batch.join("x", config); }), "stop = '': must not be empty");
  EXPECT_EQ(batch.size(), 1);
  config.stops = {};
  config.tokens = 10;
  const int64_t second = batch.join("1", config);
  EXPECT_EQ(second, 1) << "the others took no number";
  heard.finish(batch);
  EXPECT_EQ(heard.left.at(first).made.tokens, 7);
  EXPECT_EQ(heard.left.at(second).made.tokens, 10);
  // A session that fails to join is left untouched.
  Session session = std::move(heard.left.at(first).session);
  EXPECT_EQ(error_of([&] { batch.join("x", config, std::move(session)); }).substr(0, 48),
            "tokens = 10: too many after a state of 10 tokens");
  EXPECT_EQ(session.state.position(), 10);

  const auto levels = model_of("{mixer = 'log_linear_mamba2'}", "none", 16);
  Batch bounded(*levels, text::Tokenizer());
  EXPECT_EQ(error_of([&] { bounded.join("12345678", {.tokens = 10}); }),
            "levels = 5: must be at least 6 for 17 tokens");
  bounded.join("12345678", {.tokens = 9});
  Heard().finish(bounded);
}

// A state full of NaNs, as weights that overflow on a single text would produce.
TEST(Batch, OneWhoseLogitsAreNotFiniteLeavesAlone) {
  const auto model = model_of(kBlocks);
  Session spoiled{model->initial_state(1)};
  GenerateConfig short_text = kGreedy;
  short_text.tokens = 3;
  generate(
      *model, text::Tokenizer(), "x", short_text, [](std::string_view) {}, spoiled);
  Session good = spoiled;
  spoiled.state.blocks[1].tensors.at("v") =
      torch::full_like(spoiled.state.blocks[1].tensors.at("v"), NAN);
  Batch batch(*model, text::Tokenizer());
  Heard heard;
  const int64_t first = batch.join("To be", kGreedy), bad = batch.join("", kGreedy, spoiled),
                fork = batch.join("", kGreedy, good);
  heard.finish(batch);
  EXPECT_EQ(heard.left.at(bad).error,
            "the model's logits are not finite: training may have diverged");
  EXPECT_EQ(heard.left.at(bad).made.tokens, 0);
  expect_same(heard.left.at(first).made, alone(*model, "To be", kGreedy), heard.said[first]);
  EXPECT_EQ(heard.left.at(fork).made.tokens, 30);
  EXPECT_EQ(error_of([&] {
              generate(
                  *model, text::Tokenizer(), "", kGreedy, [](std::string_view) {}, spoiled);
            }),
            heard.left.at(bad).error);
}

// It fails after its first token, when it reads 'x', the only one whose embedding is bad.
TEST(Batch, OneWhoseLogitsSpoilOnTheWayLeavesAlone) {
  const auto model = model_of(kBlocks, "none");
  {
    const torch::NoGradGuard no_grad;
    auto parameters = model->named_parameters();
    parameters["head.bias"]['x'] = 1e6;  // all predict 'x'
    parameters["head.bias"]['y'] = 1e6;
    parameters["embedding"]['x'].fill_(NAN);
  }
  Batch batch(*model, text::Tokenizer());
  Heard heard;
  GenerateConfig drawn{.tokens = 40};
  for (uint64_t seed = 0; seed < 6; ++seed) {
    drawn.seed = seed;
    batch.join("ab", drawn);
  }
  heard.finish(batch);
  for (int64_t id = 0; id < 6; ++id) {
    const Batch::Left& left = heard.left.at(id);
    EXPECT_NE(left.error, "") << id;
    EXPECT_EQ(left.made.text.find('x'), left.made.text.size() - 1) << left.made.text;
    EXPECT_EQ(left.made.text.size(), static_cast<size_t>(left.made.tokens));
  }
}

// The pattern is one up to 4,097 tokens only, which shows when a text gets there.
TEST(Batch, OneWhoseNextStepIsAnErrorLeavesAlone) {
  const auto model = model_of("{mixer = 'glr', pattern = 'k<65?k^2+1:5'}");
  Batch batch(*model, text::Tokenizer());
  GenerateConfig config = kGreedy;
  config.tokens = 20;
  const int64_t first = batch.join("To be", config);
  const int64_t far = batch.join(std::string(4090, 'x'), config);
  const int64_t last = batch.join("The king", config);
  Heard heard;
  heard.finish(batch);
  EXPECT_NE(heard.left.at(far).error.find("f(65) = 5 must exceed f(64) = 4097"), std::string::npos)
      << heard.left.at(far).error;
  EXPECT_EQ(heard.left.at(far).made.tokens, 8);
  for (const auto& [id, prompt] : {std::pair(first, "To be"), {last, "The king"}}) {
    EXPECT_EQ(heard.left.at(id).error, "");
    expect_same(heard.left.at(id).made, alone(*model, prompt, config), heard.said[id]);
  }
}

TEST(Batch, NobodyIsNoError) {
  const auto model = model_of(kBlocks);
  Batch batch(*model, text::Tokenizer());
  EXPECT_TRUE(batch.step().empty());
  EXPECT_EQ(batch.size(), 0);
}

}  // namespace
}  // namespace hopmix::decode
