// One step of a whole model for sequences at different positions.
#include <gtest/gtest.h>

#include "hopmix/base/testing.h"
#include "hopmix/nn/model.h"

namespace hopmix::nn {
namespace {

std::shared_ptr<LanguageModel> build(const std::string& text, const TaskShape& task) {
  toml::table document = config::parse(text, "test");
  config::Table table(document);
  torch::manual_seed(0);
  const auto model = make_model(table, task);
  model->to(torch::kFloat64);
  return model;
}

// Tokens of one sequence.
struct Running {
  Tensor tokens, expected;  // [T,...], and the outputs of a whole pass
  ModelState state;
};

// Sequences that have read this many tokens, with room for 20 more.
std::vector<Running> sequences_of(LanguageModel& model, const std::vector<int64_t>& behind,
                                  const std::function<Tensor(int64_t)>& draw) {
  std::vector<Running> sequences;
  for (const int64_t t : behind) {
    Running& one = sequences.emplace_back();
    one.tokens = draw(t + 20);
    one.expected = model.forward(one.tokens.unsqueeze(0)).squeeze(0);
    one.state = model.initial_state(1);
    if (t > 0) model.prefill(one.tokens.slice(0, 0, t).unsqueeze(0), one.state);
  }
  return sequences;
}

// Steps all sequences except those that pause, and compares each with its row of the whole pass.
void expect_steps_of_each(LanguageModel& model, std::vector<Running>& sequences) {
  for (size_t i = 0; i < 15; ++i) {
    std::vector<ModelState*> states;
    std::vector<Tensor> tokens, expected;
    for (size_t s = 0; s < sequences.size(); ++s) {
      if ((i + s) % 4 == 3) continue;
      Running& one = sequences[s];
      states.push_back(&one.state);
      tokens.push_back(one.tokens[one.state.position()]);
      expected.push_back(one.expected[one.state.position()]);
    }
    const Tensor logits = model.step(torch::stack(tokens), states);
    ASSERT_EQ(logits.sizes(), torch::stack(expected).sizes());
    ASSERT_LT((logits - torch::stack(expected)).abs().max().item<double>(), 1e-11) << i;
    for (const ModelState* state : states) {
      int64_t bytes = 0;
      for (const State& block : state->blocks) {
        bytes += block.bytes();
        EXPECT_EQ(block.position, state->position());
      }
      EXPECT_EQ(bytes, model.state_bytes(state->position()));
    }
  }
}

TEST(ModelStepEach, EqualsTheWholePassOfEachWithEveryMixer) {
  const torch::NoGradGuard no_grad;
  for (const MixerEntry& entry : mixers()) {
    SCOPED_TRACE(entry.name);
    // Two readers, so that each sequence's publication passes through several layers.
    const std::string one = "{mixer = '" + entry.name + "'";
    const std::string blocks =
        entry.reads_mem ? "{mixer = 'attention', mem = 'm', heads = 2}, " + one +
                              ", mem = 'm'}, {mixer = 'mura', mem = 'm', widths = [3, 2]}"
                        : one + ", repeat = 2}, {mixer = 'glr', pattern = 'cached(2^k)'}";
    const bool last_only = entry.name == "retrieved_recurrence";  // one vector per hop
    const auto model = build("width = 24\npositions = 'rope'\nblocks = [" +
                                 (last_only ? blocks.substr(0, blocks.rfind(", {")) : blocks) + "]",
                             {.vocabulary = 11, .length = 64});
    std::vector<Running> sequences = sequences_of(*model, {17, 0, 1, 40}, [](int64_t time) {
      return torch::randint(11, {time}, torch::kInt64);
    });
    expect_steps_of_each(*model, sequences);
  }
}

TEST(ModelStepEach, LearnedPositionsFieldsAndReadouts) {
  const torch::NoGradGuard no_grad;
  const auto model = build(
      "width = 16\nread_after = [1, 3, 2]\nblocks = [{mixer = 'attention', repeat = 2}, {mixer = "
      "'gla'}]",
      {.vocabulary = 7,
       .length = 60,
       .fields = {{"function", 5}, {"index", 7, /*of_tokens=*/true}},
       .readouts = 3});
  std::vector<Running> sequences = sequences_of(*model, {3, 40, 0}, [](int64_t time) {
    return torch::randint(5, {time, 3}, torch::kInt64);
  });
  expect_steps_of_each(*model, sequences);
}

TEST(ModelStepEach, AForkedSequenceGoesItsOwnWay) {
  const torch::NoGradGuard no_grad;
  const auto model = build(
      "width = 16\npositions = 'rope'\nblocks = [{mixer = 'attention'}, {mixer = "
      "'gated_deltanet'}, {mixer = 'glr', pattern = 'cached(k^2+1)'}]",
      {.vocabulary = 7, .length = 60});
  std::vector<Running> sequences = sequences_of(
      *model, {30}, [](int64_t time) { return torch::randint(7, {time}, torch::kInt64); });
  sequences.push_back(sequences[0]);
  sequences[1].tokens = sequences[0].tokens.clone();
  sequences[1].tokens.slice(0, 30).add_(1).remainder_(7);
  sequences[1].expected = model->forward(sequences[1].tokens.unsqueeze(0)).squeeze(0);
  expect_steps_of_each(*model, sequences);
}

// A sequence at its end stops the step before any state changes.
TEST(ModelStepEach, Errors) {
  const torch::NoGradGuard no_grad;
  const auto model =
      build("width = 8\nblocks = [{mixer = 'attention'}]", {.vocabulary = 5, .length = 10});
  ModelState full = model->initial_state(1), other = model->initial_state(1);
  model->prefill(torch::zeros({1, 10}, torch::kInt64), full);
  model->prefill(torch::zeros({1, 3}, torch::kInt64), other);
  const Tensor two = torch::zeros({2}, torch::kInt64);
  const auto error = [&](const Tensor& tokens, const std::vector<ModelState*>& states) {
    return error_of([&] { model->step(tokens, states); });
  };
  EXPECT_EQ(error(two, {&other, &full}),
            "position 10: the model's table of learned positions holds 10 (model.max_length); use "
            "positions = \"rope\" or \"none\" for longer sequences");
  EXPECT_EQ(other.position(), 3);
  EXPECT_EQ(error(two, {&other, &other}), "states: must be distinct, but one appears twice");
  EXPECT_EQ(error(two, {&other}), "states: must have one per row of tokens, 2, but has 1");
  EXPECT_EQ(error(two.slice(0, 0, 0), {}), "tokens: must hold at least one sequence");
  EXPECT_EQ(error_of([&] { model->check_length(11); }).substr(0, 12), "position 10:");
  model->check_length(10);
  const auto levels = build(
      "width = 8\npositions = 'none'\nblocks = [{mixer = 'parallel', branches = [{mixer = "
      "'gla'}, {mixer = 'log_linear_mamba2'}]}]",
      {.vocabulary = 5, .length = 16});
  levels->check_length(16);
  EXPECT_EQ(error_of([&] { levels->check_length(17); }),
            "levels = 5: must be at least 6 for 17 tokens");
}

}  // namespace
}  // namespace hopmix::nn
