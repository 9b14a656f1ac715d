#include "hopmix/nn/model.h"

#include <gtest/gtest.h>

#include "hopmix/base/testing.h"

namespace hopmix::nn {
namespace {

std::shared_ptr<LanguageModel> build(const std::string& text, int64_t vocabulary = 11,
                                     int64_t length = 40) {
  toml::table document = config::parse(text, "test");
  config::Table root(document);
  config::Table model = root.table("model");
  torch::manual_seed(0);
  return make_model(model, {.vocabulary = vocabulary, .length = length});
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

// Values and all gradients of a loss on only these rows.
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

// Outputs and all gradients, where each document has its own positions.
TEST(Model, APackedDocumentIsThatDocumentAlone) {
  const std::vector<int64_t> ends = {0, 17, 18, 18, 58, 60};
  const Tensor cu_seqlens = torch::tensor(ends, torch::kInt64);
  for (const std::string positions : {"learned", "rope", "none"}) {
    std::string text = kHybrid;
    text.replace(text.find("\"rope\""), 6, '"' + positions + '"');
    const auto model = build(text);
    model->to(torch::kFloat64);
    const Tensor tokens = torch::randint(0, 11, {1, 60}, torch::kInt64);
    const Tensor weight = torch::randn({1, 60, 11}, torch::kFloat64);
    const auto gradients = [&] {
      std::vector<Tensor> all;
      for (const Tensor& p : model->parameters()) all.push_back(p.grad().clone());
      model->zero_grad();
      return all;
    };
    const Tensor packed = model->forward(tokens, cu_seqlens);
    (packed * weight).sum().backward();
    const std::vector<Tensor> of_packed = gradients();
    std::vector<Tensor> outputs;
    for (size_t n = 0; n + 1 < ends.size(); ++n) {
      if (ends[n] == ends[n + 1]) continue;
      outputs.push_back(model->forward(tokens.slice(1, ends[n], ends[n + 1])));
      (outputs.back() * weight.slice(1, ends[n], ends[n + 1])).sum().backward();
    }
    const std::vector<Tensor> of_each = gradients();
    EXPECT_LT((packed - torch::cat(outputs, 1)).abs().max().item<double>(), 1e-12) << positions;
    for (size_t i = 0; i < of_each.size(); ++i) {
      const double scale = std::max(1.0, of_each[i].abs().max().item<double>());
      EXPECT_LT((of_packed[i] - of_each[i]).abs().max().item<double>(), 1e-12 * scale)
          << positions << " " << i;
    }
    const torch::NoGradGuard no_grad;
    const Tensor rows = torch::tensor({0, 16, 17, 18, 59}, torch::kInt64);
    EXPECT_LT((model->forward_at(tokens, rows, cu_seqlens) - packed[0].index_select(0, rows))
                  .abs()
                  .max()
                  .item<double>(),
              1e-12);
    // Changing one document changes no bit of another.
    Tensor changed = tokens.clone();
    changed.slice(1, 18, 58).add_(1).remainder_(11);
    const Tensor other = model->forward(changed, cu_seqlens);
    EXPECT_TRUE(torch::equal(other.slice(1, 0, 18), packed.slice(1, 0, 18))) << positions;
    EXPECT_TRUE(torch::equal(other.slice(1, 58), packed.slice(1, 58))) << positions;
    EXPECT_FALSE(torch::equal(other.slice(1, 18, 58), packed.slice(1, 18, 58)));
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

constexpr const char* kReadouts = R"toml(
[model]
width = 16
positions = "none"
read_after = [1, 3, 2]
blocks = [{mixer = "attention", repeat = 2}, {mixer = "gla"}]
)toml";

std::shared_ptr<LanguageModel> build_readouts(const std::string& extra = "") {
  toml::table document = config::parse(kReadouts, "test");
  if (!extra.empty()) config::set(document, extra);
  config::Table root(document);
  config::Table table = root.table("model");
  torch::manual_seed(0);
  return make_model(table, {.vocabulary = 7,
                            .length = 20,
                            .fields = {{"function", 5}, {"index", 7, /*of_tokens=*/true}},
                            .readouts = 3});
}

Tensor readout_tokens() {
  torch::manual_seed(1);
  return torch::stack(
      {torch::randint(0, 7, {2, 20}, torch::kInt64), torch::randint(0, 5, {2, 20}, torch::kInt64),
       torch::randint(0, 7, {2, 20}, torch::kInt64)},
      2);
}

TEST(Model, SeveralReadoutsOfTokensWithFields) {
  for (const std::string extra : {"", "model.shared_head=true", "model.read_after=[]"}) {
    const auto model = build_readouts(extra);
    model->to(torch::kFloat64);
    const torch::NoGradGuard no_grad;
    const Tensor tokens = readout_tokens();
    const Tensor whole = model->forward(tokens);
    ASSERT_EQ(whole.sizes(), (std::vector<int64_t>{2, 20, 3, 7}));
    const Tensor rows = torch::tensor({0, 1, 5, 59, 60, 119}, torch::kInt64);
    EXPECT_TRUE(
        torch::equal(model->forward_at(tokens, rows), whole.flatten(0, 2).index_select(0, rows)));
    ModelState state = model->initial_state(2);
    for (int64_t t = 0; t < 20; ++t) {
      const Tensor logits = model->step(tokens.select(1, t), state);
      ASSERT_LT((logits - whole.select(1, t)).abs().max().item<double>(), 1e-12) << t;
    }
    // Every number of a token affects the outputs at it and after it.
    for (int64_t number = 0; number < 3; ++number) {
      Tensor changed = tokens.clone();
      changed[0][9][number] = (changed[0][9][number] + 1) % 5;
      const Tensor other = model->forward(changed);
      EXPECT_TRUE(torch::equal(other[0].slice(0, 0, 9), whole[0].slice(0, 0, 9))) << number;
      EXPECT_FALSE(torch::equal(other[0][9], whole[0][9])) << number;
    }
  }
}

// The loss, its parts and all gradients, compared with a computation through all logits.
void expect_loss_of_logits(LanguageModel& model, const Tensor& tokens, const Tensor& rows,
                           const std::optional<Tensor>& weights) {
  const int64_t vocabulary = model.config().task.vocabulary;
  const Tensor targets = (rows * 5).remainder(vocabulary);
  const auto gradients = [&](const Tensor& loss) {
    model.zero_grad();
    loss.backward();
    std::vector<Tensor> all;
    for (const Tensor& p : model.parameters()) all.push_back(p.grad().clone());
    return all;
  };
  const Tensor logits = model.forward_at(tokens, rows);
  const Tensor losses = torch::cross_entropy_loss(logits, targets, {}, at::Reduction::None);
  const Tensor loss = weights ? (losses * *weights).sum() : losses.mean();
  const std::vector<Tensor> expected = gradients(loss);
  const Scored scored = model.loss_at(tokens, rows, targets, weights);
  EXPECT_LT((scored.loss - loss).abs().item<double>(), 1e-12);
  EXPECT_LT((scored.losses - losses).abs().max().item<double>(), 1e-12);
  EXPECT_FALSE(scored.losses.requires_grad());
  EXPECT_TRUE(torch::equal(scored.guesses, logits.argmax(-1)));
  const std::vector<Tensor> actual = gradients(scored.loss);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT((actual[i] - expected[i]).abs().max().item<double>(), 1e-12) << i;
  }
}

TEST(Model, LossIsThatOfTheLogits) {
  const Tensor rows = torch::tensor({7, 0, 39, 40, 81, 119}, torch::kInt64);
  const Tensor weights = torch::rand({6}, torch::kFloat64);
  const auto model = build(kHybrid);
  model->to(torch::kFloat64);
  const Tensor tokens = torch::randint(0, 11, {3, 40}, torch::kInt64);
  expect_loss_of_logits(*model, tokens, rows, {});
  expect_loss_of_logits(*model, tokens, rows, weights);
  for (const std::string extra : {"", "model.shared_head=true", "model.read_after=[]"}) {
    SCOPED_TRACE(extra);
    const auto readouts = build_readouts(extra);
    readouts->to(torch::kFloat64);
    expect_loss_of_logits(*readouts, readout_tokens(), rows, {});
    expect_loss_of_logits(*readouts, readout_tokens(), rows, weights);
    // No questions for the second readout.
    expect_loss_of_logits(*readouts, readout_tokens(), torch::tensor({3, 2, 8, 9}), {});
  }
}

TEST(Model, PackedReadoutsOfTokensWithFields) {
  const auto model = build_readouts();
  model->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  const Tensor tokens = readout_tokens().view({1, 40, 3});
  const Tensor cu_seqlens = torch::tensor({0, 20, 40}, torch::kInt64);
  const Tensor rows = torch::arange(0, 120, 7);
  const Tensor whole = model->forward(readout_tokens());
  EXPECT_LT((model->forward(tokens, cu_seqlens).view_as(whole) - whole).abs().max().item<double>(),
            1e-12);
  EXPECT_LT(
      (model->forward_at(tokens, rows, cu_seqlens) - whole.flatten(0, 2).index_select(0, rows))
          .abs()
          .max()
          .item<double>(),
      1e-12);
}

TEST(Model, AReadoutComesFromTheBlocksBeforeIt) {
  const auto model = build_readouts();
  const std::vector<int64_t> after = {1, 3, 2};
  for (int64_t m = 0; m < 3; ++m) {
    model->zero_grad();
    model->forward(readout_tokens()).select(2, m).square().sum().backward();
    for (int64_t block = 0; block < 3; ++block) {
      const std::string name = "blocks_" + std::to_string(block) + ".up.weight";
      EXPECT_EQ(model->named_parameters()[name].grad().defined() &&
                    model->named_parameters()[name].grad().abs().max().item<double>() > 0,
                block < after[static_cast<size_t>(m)])
          << m << " " << block;
    }
  }
}

TEST(Model, OfAnIndexTheVectorsOfTheTokensAreMapped) {
  const auto names = build_readouts()->named_parameters();
  EXPECT_EQ(names["function"].sizes(), (std::vector<int64_t>{5, 16}));
  EXPECT_EQ(names["index.weight"].sizes(), (std::vector<int64_t>{16, 16}));
  EXPECT_EQ(names["head.weight"].size(0), 3 * 7);
  EXPECT_EQ(build_readouts("model.shared_head=true")->named_parameters()["head.weight"].size(0), 7);
}

TEST(Model, BadReadoutsNameTheKey) {
  const auto error = [](const std::string& extra) {
    try {
      build_readouts(extra);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(
      error("model.read_after=[1, 2]"),
      "model.read_after = [ 1, 2 ]: must be 3 block counts, one per readout, each from 0 to 3");
  EXPECT_EQ(
      error("model.read_after=[1, 2, 4]"),
      "model.read_after = [ 1, 2, 4 ]: must be 3 block counts, one per readout, each from 0 to 3");
  EXPECT_EQ(error("model.read_after=[1, 2, 0.5]"),
            "model.read_after = [ 1, 2, 0.5 ]: must be an array of integers");
  EXPECT_EQ(error_of("[model]\nread_after = [1]\nblocks = [{mixer = 'gla'}]").substr(0, 30),
            "unknown key 'model.read_after'");
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

TEST(Model, LearnedPositionsEndWithTheLongestDocument) {
  const auto model = build("[model]\nwidth = 8\n[[model.blocks]]\nmixer = 'attention'");
  const Tensor tokens = torch::zeros({1, 100}, torch::kInt64);
  const auto error = [&](const std::vector<int64_t>& ends) {
    return hopmix::error_of([&] { model->forward(tokens, torch::tensor(ends, torch::kInt64)); });
  };
  EXPECT_EQ(error({0, 40, 80, 100}), "");
  EXPECT_EQ(error({0, 40, 81, 100}).substr(0, 60),
            "position 40: the model's table of learned positions holds 40");
  EXPECT_EQ(error({0, 40, 99}), "cu_seqlens[2] = 99: must be the number of tokens, 100");
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
            "model.blocks.0.mixer is missing: is 'mixr' a typo?");
  EXPECT_EQ(error_of(block + "window = 4"),
            "unknown key 'model.blocks.0.window'; known: mixer, repeat, heads, token_shift, rope, "
            "head_width, kv_heads, mem");
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
  // f increases at first; the model's 40 tokens reach the point where it stops.
  EXPECT_NE(error_of("[[model.blocks]]\nmixer = 'glr'\npattern = 'k<4?k+1:2'")
                .find("f(4) = 2 must exceed f(3) = 4"),
            std::string::npos);
}

// Before anything is made, so that no size ends with an empty memory.
TEST(Model, EverySizeHasABound) {
  const std::vector<std::pair<std::string, std::string>> sizes = {
      {"model.width", "mixer = 'attention'"},
      {"model.heads", "mixer = 'attention'"},
      {"model.mlp", "mixer = 'attention'"},
      {"model.max_length", "mixer = 'attention'"},
      {"model.blocks.0.repeat", "mixer = 'attention'"},
      {"model.blocks.0.head_width", "mixer = 'attention'"},
      {"model.blocks.0.expand", "mixer = 'mamba'"},
      {"model.blocks.0.state", "mixer = 'mamba'"},
      {"model.blocks.0.conv", "mixer = 'mamba'"},
      {"model.blocks.0.head_width", "mixer = 'mamba2'"},
      {"model.blocks.0.levels", "mixer = 'log_linear_mamba2'"},
      {"model.blocks.0.expand_v", "mixer = 'gated_deltanet'"},
      {"model.blocks.0.rank", "mixer = 'kda'"},
      {"model.blocks.0.gate_rank", "mixer = 'gla'"},
      {"model.blocks.0.recurrent_width", "mixer = 'griffin'"},
      {"model.blocks.0.state", "mixer = 'chimera'"},
      {"model.blocks.0.state", "mixer = 'diagonal_ssm'"},
      {"model.blocks.0.block", "mixer = 'block_chacal'"},
  };
  for (const auto& [key, block] : sizes) {
    for (const std::string value : {"100000000000", "9223372036854775807"}) {
      toml::table document = config::parse("[[model.blocks]]\n" + block, "test");
      config::set(document, key + "=" + value);
      const std::string message = error_of(config::to_string(document));
      EXPECT_TRUE(message.starts_with(key + " = " + value + ": must be at most ")) << message;
    }
  }
  EXPECT_EQ(error_of("[[model.blocks]]\nmixer = 'gla'\nexpand_k = 2e6"),
            "model.blocks.0.expand_k = 2000000.0: must be above 0 and at most 1048576");
}

TEST(Model, WeightsAndStatesFitTheMemory) {
  const auto refused = [](const std::string& text, const std::string& start) {
    const std::string message = error_of(text);
    EXPECT_TRUE(message.starts_with(start)) << message;
    EXPECT_NE(message.find("too much for this machine's memory"), std::string::npos) << message;
  };
  refused("[model]\nwidth = 1048576\n[[model.blocks]]\nmixer = 'attention'",
          "model.blocks.0: a weight of [3145728, 2097152] takes 24.0 TiB");
  refused("[model]\nwidth = 1048576\n[[model.blocks]]\nmixer = 'diagonal_ssm'\nstate = 1048576",
          "model.blocks.0: a weight of ");
  refused("[model]\nwidth = 1024\nmlp = 1048576\n[[model.blocks]]\nmixer = 'attention'",
          "model.blocks.0: with repeat = 1, model.width = 1024 and model.mlp = 1048576, the "
          "weights take "
          "8.0 TiB");
  refused(
      "[model]\nwidth = 2048\ntoken_shift = false\n[[model.blocks]]\nmixer = 'attention'\nrepeat = "
      "10000",
      "model.blocks.0: with repeat = 10000, model.width = 2048 and model.mlp = 2, the weights "
      "take ");
  refused(
      "[model]\nwidth = 8\nheads = 1\n[[model.blocks]]\nmixer = 'gated_deltanet'\nhead_width = "
      "1048576\nexpand_v = 1",
      "model.blocks.0: the state of a sequence takes 4.0 TiB");
}

}  // namespace
}  // namespace hopmix::nn
