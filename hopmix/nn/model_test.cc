#include "hopmix/nn/model.h"

#include <gtest/gtest.h>

namespace hopmix::nn {
namespace {

std::shared_ptr<LanguageModel> build(const std::string& text, int64_t vocabulary = 11,
                                     int64_t length = 40) {
  toml::table document = config::parse(text, "test");
  config::Table root(document);
  config::Table model = root.table("model");
  torch::manual_seed(0);
  return make_model(model, vocabulary, length);
}

std::string error_of(const std::string& text) {
  try {
    build(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

constexpr const char* kHybrid = R"toml(
[model]
width = 24
positions = "rope"
[[model.blocks]]
mixer = "gated_linear_recurrence"
repeat = 2
[[model.blocks]]
mixer = "glr"
pattern = "cached(k^2+1)"
[[model.blocks]]
mixer = "attention"
heads = 2
)toml";

// Values and every gradient, of a loss on these rows alone.
TEST(Model, RowsAreThoseOfTheWholeForward) {
  for (const std::string& text :
       {std::string(kHybrid), std::string("[model]\nwidth=16\nmlp=0\nblocks=[{mixer='glr'}]")}) {
    const auto model = build(text);
    model->to(torch::kFloat64);
    const Tensor tokens = torch::randint(0, 11, {3, 40}, torch::kInt64);
    const Tensor rows = torch::tensor({0, 7, 39, 40, 81, 119}, torch::kInt64);
    const Tensor weight = torch::randn({6, 11}, torch::kFloat64);
    const auto run = [&](const Tensor& logits) {
      model->zero_grad();
      (logits * weight).sum().backward();
      std::vector<Tensor> all = {logits.detach()};
      for (const Tensor& p : model->parameters()) all.push_back(p.grad().clone());
      return all;
    };
    const std::vector<Tensor> whole =
        run(model->forward(tokens).flatten(0, 1).index_select(0, rows));
    const std::vector<Tensor> alone = run(model->forward_at(tokens, rows));
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_LT((whole[i] - alone[i]).abs().max().item<double>(), 1e-12) << i;
    }
  }
}

TEST(Model, StepEqualsForward) {
  for (const std::string positions : {"learned", "rope", "none"}) {
    std::string text = kHybrid;
    text.replace(text.find("\"rope\""), 6, '"' + positions + '"');
    const auto model = build(text);
    model->to(torch::kFloat64);
    const torch::NoGradGuard no_grad;
    const Tensor tokens = torch::randint(0, 11, {3, 40}, torch::kInt64);
    const Tensor whole = model->forward(tokens);
    ModelState state = model->initial_state(3);
    for (int64_t t = 0; t < 40; ++t) {
      const Tensor logits = model->step(tokens.select(1, t), state);
      ASSERT_LT((logits - whole.select(1, t)).abs().max().item<double>(), 1e-12)
          << positions << " " << t;
      int64_t bytes = 0;
      for (const State& block : state.blocks) bytes += block.bytes();
      EXPECT_EQ(bytes, 3 * model->state_bytes(t + 1));
    }
  }
}

TEST(Model, BlocksRepeat) { EXPECT_EQ(build(kHybrid)->initial_state(1).blocks.size(), 4u); }

TEST(Model, SameSeedSameWeights) {
  const auto a = build(kHybrid), b = build(kHybrid);
  for (const auto& item : a->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), b->named_parameters()[item.key()])) << item.key();
  }
}

TEST(Model, LearnedPositionsEnd) {
  const auto model = build("[model]\nwidth = 8\n[[model.blocks]]\nmixer = 'attention'");
  try {
    model->forward(torch::zeros({1, 41}, torch::kInt64));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what())
                  .find("position 40: the model's table of learned positions holds 40"),
              std::string::npos);
  }
}

TEST(Model, MlpOfZeroIsNone) {
  const auto with = build("[model]\nwidth = 8\n[[model.blocks]]\nmixer = 'attention'");
  const auto without = build("[model]\nwidth = 8\nmlp = 0\n[[model.blocks]]\nmixer = 'attention'");
  EXPECT_EQ(with->parameter_count() - without->parameter_count(), 8 + 2 * 8 * 16 + 16 + 8);
}

TEST(Model, BadConfigsNameTheKey) {
  const std::string block = "[[model.blocks]]\nmixer = 'attention'\n";
  EXPECT_EQ(error_of("[model]\nwdith = 8\n" + block),
            "unknown key 'model.wdith'; did you mean 'width'?");
  EXPECT_EQ(error_of("[model]\nwidth = '8'\n" + block), "model.width = '8': must be an integer");
  EXPECT_EQ(error_of("[model]\nwidth = 0\n" + block), "model.width = 0: must be at least 1");
  EXPECT_EQ(error_of("[model]\nwidth = 8"),
            "model.blocks is missing: needs at least one [[model.blocks]] with a mixer");
  EXPECT_EQ(error_of("[[model.blocks]]\nmixer = 'glar'").substr(0, 22), "model.blocks.0.mixer: ");
  EXPECT_EQ(error_of("[[model.blocks]]\nmixr = 'glr'\npattern = '2^k'"),
            "model.blocks.0.mixer is missing: is it 'mixr' by mistake?");
  EXPECT_EQ(error_of(block + "window = 4"),
            "unknown key 'model.blocks.0.window'; known: mixer, repeat, heads, token_shift, rope");
  EXPECT_EQ(error_of("[[model.blocks]]\nmixer = 'parallel'\nbranches = []"),
            "model.blocks.0.branches = []: needs at least one table with a mixer");
  EXPECT_EQ(error_of("[[model.blocks]]\nmixer = 'parallel'\nbranches = [{mixer = 'gla', gama = 1}]")
                .substr(0, 42),
            "unknown key 'model.blocks.0.branches.0.gam");
  EXPECT_EQ(
      error_of("[[model.blocks]]\nmixer = 'gated_linear_recurrence'\nrope = true").substr(0, 32),
      "unknown key 'model.blocks.0.rope");
  EXPECT_EQ(error_of("[[model.blocks]]\nmixer = 'attention'\nheads = 7"),
            "model.blocks.0: heads = 7: must divide the width, 64");
  EXPECT_EQ(error_of("[[model.blocks]]\nmixer = 'glr'\ncoefficients = 'share'"),
            "model.blocks.0.coefficients = 'share': must be one of shared, independent, "
            "normalized, normalized_read; did you "
            "mean 'shared'?");
  EXPECT_EQ(
      error_of("[model]\npositions = 'lerned'\n" + block),
      "model.positions = 'lerned': must be one of learned, rope, none; did you mean 'learned'?");
  EXPECT_EQ(
      error_of("[[model.blocks]]\nmixer = 'glr'\npattern = 'windw(3)'"),
      "model.blocks.0.pattern: pattern 'windw(3)': unknown name 'windw' at character 1; did you "
      "mean 'window'?");
  // Increasing at first; the model's 40 tokens show where it stops.
  EXPECT_NE(error_of("[[model.blocks]]\nmixer = 'glr'\npattern = 'k<4?k+1:2'")
                .find("f(4) = 2 must exceed f(3) = 4"),
            std::string::npos);
}

}  // namespace
}  // namespace hopmix::nn
