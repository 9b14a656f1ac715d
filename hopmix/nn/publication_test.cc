#include "hopmix/nn/publication.h"

#include <gtest/gtest.h>

#include "hopmix/nn/model.h"

namespace hopmix::nn {
namespace {

std::shared_ptr<LanguageModel> build(const std::string& text, int64_t readouts = 1) {
  toml::table document = config::parse(text, "test");
  config::Table root(document);
  config::Table model = root.table("model");
  torch::manual_seed(0);
  return make_model(model, {.vocabulary = 11, .length = 40, .readouts = readouts});
}

// The error of building these blocks after an attention that publishes two heads as 'cache'.
std::string error_of(const std::string& blocks, int64_t readouts = 1) {
  const std::string publisher = "{mixer='attention', mem='cache', heads=2}, ";
  try {
    build("[model]\nblocks = [" + publisher + blocks + "]", readouts);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Publication, BadConfigsNameTheKey) {
  EXPECT_EQ(error_of("{mixer='mura', mem='cache'}"), "");
  for (const std::string mixer : {"mura", "topk_access", "hysparse", "retrieved_recurrence"}) {
    EXPECT_EQ(error_of("{mixer='" + mixer + "'}"),
              "model.blocks.1.mem is missing: must be a string");
    EXPECT_EQ(error_of("{mixer='" + mixer + "', mem='cach'}"),
              "model.blocks.1.mem = 'cach': no earlier layer publishes it; did you mean 'cache'?");
  }
  EXPECT_EQ(error_of("{mixer='mura', mem='own', heads=1}, {mixer='attention', mem='own'}"),
            "model.blocks.1.mem = 'own': no earlier layer publishes it; known: cache");
  EXPECT_EQ(
      error_of("{mixer='attention', mem='cache'}"),
      "model.blocks.1.mem = 'cache': is already published by an earlier layer; choose another "
      "name");
  EXPECT_EQ(error_of("{mixer='attention', mem='own', repeat=2}"),
            "model.blocks.1.mem = 'own': is already published by an earlier layer; choose another "
            "name");
  EXPECT_EQ(error_of("{mixer='mura', mem='cache', heads=3}"),
            "model.blocks.1.heads = 3: must be a multiple of the heads of mem 'cache', 2");
}

TEST(Publication, BadSizesNameTheKey) {
  for (const std::string widths :
       {"[]", "[ 0 ]", "[ 4, -1 ]", "[ 64, 65 ]", "[ 0, 5000 ]", "[ 4611686018427387905, 4 ]"}) {
    EXPECT_EQ(
        error_of("{mixer='mura', mem='cache', widths=" + widths + "}"),
        "model.blocks.1.widths = " + widths +
            ": must list at least one number, each at least 1, with a product of at most 4096");
  }
  for (const std::string mixer : {"topk_access", "hysparse", "retrieved_recurrence"}) {
    for (const std::string kappa : {"-1", "0", "4097", "9223372036854775807"}) {
      EXPECT_EQ(error_of("{mixer='" + mixer + "', mem='cache', kappa=" + kappa + "}"),
                "model.blocks.1.kappa = " + kappa + ": must be from 1 to 4096");
    }
  }
  for (const std::string hops : {"4097", "9223372036854775807"}) {
    EXPECT_EQ(error_of("{mixer='retrieved_recurrence', mem='cache', hops=" + hops + "}"),
              "model.blocks.1.hops = " + hops + ": must be at most 4096");
  }
}

TEST(Publication, OneVectorAHopIsForTheLastBlock) {
  const std::string shared = "{mixer='retrieved_recurrence', mem='cache', readout='shared'";
  EXPECT_EQ(error_of(shared + "}", 4), "");
  EXPECT_EQ(error_of(shared + ", hops=2}", 3),
            "model.blocks.1.hops = 2: must be at least the task's readouts, 3");
  const std::string last =
      ": follows a block that returns one vector per hop, which must be the last block";
  EXPECT_EQ(error_of(shared + "}, {mixer='mura', mem='cache'}"),
            "model.blocks.2.mixer = 'mura'" + last);
  EXPECT_EQ(error_of(shared + ", repeat=2}"),
            "model.blocks.1.mixer = 'retrieved_recurrence'" + last);
  const std::string branch =
      ".readout = 'shared': returns one vector per hop, which only the last block of a model may "
      "do";
  EXPECT_EQ(error_of("{mixer='parallel', branches=[{mixer='gla'}, " + shared + "}]}"),
            "model.blocks.1.branches.1" + branch);
  EXPECT_EQ(error_of("{mixer='topk_access', mem='cache', recurrent=" + shared + "}}"),
            "model.blocks.1.recurrent" + branch);
}

// Readers of both selections of one cache: in sequence, in parallel and nested.
constexpr const char* kReaders = R"toml(
[model]
width = 16
heads = 2
positions = "rope"
[[model.blocks]]
mixer = "attention"
mem = "a"
kv_heads = 1
[[model.blocks]]
mixer = "mura"
mem = "a"
widths = [3, 1]
[[model.blocks]]
mixer = "mura"
mem = "a"
widths = [2, 2]
include_self = false
set = "exact"
[[model.blocks]]
mixer = "attention"
mem = "b"
[[model.blocks]]
mixer = "parallel"
combine = "gates"
branches = [
  {mixer = "retrieved_recurrence", mem = "b", kappa = 5},
  {mixer = "parallel", branches = [{mixer = "hysparse", mem = "b", kappa = 4, window = 3},
                                   {mixer = "attention", mem = "c"},
                                   {mixer = "mura", mem = "c", include_self = false}]},
  {mixer = "mura", mem = "a", include_self = false, widths = [1, 4, 1]},
]
)toml";

TEST(Publication, ReadersOfBothSelectionsStepAsTheyGoForward) {
  const auto model = build(kReaders);
  model->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  for (const int64_t time : {1, 2, 65, 1100}) {
    torch::manual_seed(time);
    const Tensor tokens = torch::randint(0, 11, {2, time}, torch::kInt64);
    const Tensor whole = model->forward(tokens);
    ModelState state = model->initial_state(2);
    for (int64_t t = 0; t < time; ++t) {
      const Tensor logits = model->step(tokens.select(1, t), state);
      ASSERT_LT((logits - whole.select(1, t)).abs().max().item<double>(), 1e-11) << "t = " << t;
    }
    int64_t bytes = 0;
    for (const State& of_block : state.blocks) bytes += of_block.bytes();
    EXPECT_EQ(bytes, 2 * model->state_bytes(time));
  }
}

TEST(Publication, ReadersOfBothSelectionsSeeNoFuture) {
  const auto model = build(kReaders);
  const torch::NoGradGuard no_grad;
  const Tensor tokens = torch::randint(0, 11, {2, 150}, torch::kInt64);
  const Tensor before = model->forward(tokens);
  for (const int64_t cut : {1, 64, 149}) {
    Tensor other = tokens.clone();
    other.slice(1, cut).copy_(torch::randint(0, 11, {2, 150 - cut}, torch::kInt64));
    other.slice(1, cut, cut + 1).copy_((tokens.slice(1, cut, cut + 1) + 1).remainder(11));
    const Tensor after = model->forward(other);
    EXPECT_TRUE(torch::equal(after.slice(1, 0, cut), before.slice(1, 0, cut))) << cut;
    EXPECT_FALSE(torch::equal(after.select(1, cut), before.select(1, cut))) << cut;
  }
}

}  // namespace
}  // namespace hopmix::nn
