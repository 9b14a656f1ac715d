#include "hopmix/decode/state_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "hopmix/base/testing.h"
#include "hopmix/train/safetensors.h"

namespace hopmix::decode {
namespace {

std::shared_ptr<nn::LanguageModel> model_of(const std::string& pattern = "cached(k^2+1)") {
  torch::manual_seed(7);
  toml::table document =
      config::parse("width = 16\npositions = 'rope'\nblocks = [{mixer = 'glr', pattern = '" +
                        pattern + "'}, {mixer = 'attention'}, {mixer = 'gated_deltanet'}]",
                    "test");
  config::Table table(document);
  nn::TaskShape shape;
  shape.vocabulary = 256;
  shape.length = 64;
  return nn::make_model(table, shape);
}

class StateFileTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(file_); }

  const std::filesystem::path file_ =
      std::filesystem::path(testing::TempDir()) / ("state " + std::to_string(getpid()));
};

TEST_F(StateFileTest, GoesOnAsIfNothingHadHappened) {
  const auto model = model_of();
  const torch::NoGradGuard no_grad;
  const std::string mark = fingerprint(*model, "config");
  for (const int64_t length : {0, 1, 90}) {
    Session session{model->initial_state(1), {65, 66}};
    if (length > 0) {
      model->prefill(torch::randint(256, {1, length}, torch::kLong), session.state);
    }
    save_session(file_, session, mark);
    Session loaded = load_session(file_, *model, mark);
    EXPECT_EQ(loaded.unread, session.unread);
    ASSERT_EQ(loaded.state.position(), length);
    for (int64_t token = 0; token < 40; ++token) {
      const torch::Tensor next = torch::tensor({token}, torch::kLong);
      EXPECT_TRUE(torch::equal(model->step(next, session.state), model->step(next, loaded.state)));
    }
  }
}

TEST_F(StateFileTest, OfAnotherModelIsAnError) {
  const auto model = model_of();
  const std::string mark = fingerprint(*model, "config");
  EXPECT_EQ(mark, fingerprint(*model_of(), "config")) << "the same seed, the same weights";
  EXPECT_NE(mark, fingerprint(*model, "another config"));
  const auto trained = model_of();
  {
    const torch::NoGradGuard no_grad;
    trained->parameters()[3].view({-1})[5] += 1e-6;
  }
  const std::string other = fingerprint(*trained, "config");
  EXPECT_NE(mark, other);
  save_session(file_, {model->initial_state(1)}, mark);
  EXPECT_EQ(error_of([&] { load_session(file_, *trained, other); }),
            "'" + file_.string() + "' was saved by a different model: fingerprint " + mark +
                ", expected " + other + " (config and weights must match)");
}

TEST_F(StateFileTest, DamageIsAnError) {
  const auto model = model_of();
  const torch::NoGradGuard no_grad;
  Session session{model->initial_state(1)};
  model->prefill(torch::zeros({1, 30}, torch::kLong), session.state);
  const std::string name = "'" + file_.string() + "' ";
  const auto refused = [&] { return error_of([&] { load_session(file_, *model, "m"); }); };

  train::write_safetensors(file_, {}, {});
  EXPECT_EQ(refused(), name + "is not a hopmix state file");

  save_session(file_, session, "m");
  const train::SafetensorsFile good = train::read_safetensors(file_);
  train::SafetensorsFile bad = good;
  bad.metadata["position"] = "3000";
  train::write_safetensors(file_, bad.tensors, bad.metadata);
  EXPECT_EQ(refused(), name + "is damaged: it does not hold the state of 3000 tokens");
  bad.metadata["position"] = "many";
  train::write_safetensors(file_, bad.tensors, bad.metadata);
  EXPECT_EQ(refused(), name + "is damaged: position = 'many', unread = '[]' must be numbers");
  bad = good;
  bad.metadata["unread"] = "[256]";
  train::write_safetensors(file_, bad.tensors, bad.metadata);
  EXPECT_EQ(refused(), name + "is damaged: it does not hold the state of 30 tokens");
  bad = good;
  bad.tensors["2.S"] = bad.tensors["2.S"].narrow(1, 0, 1).clone();
  train::write_safetensors(file_, bad.tensors, bad.metadata);
  EXPECT_EQ(refused(), name + "is damaged: tensor '2.S' is missing or has the wrong type or shape");
  bad.tensors.erase("0.z");
  train::write_safetensors(file_, bad.tensors, bad.metadata);
  EXPECT_EQ(refused(), name + "is damaged: tensor '0.z' is missing or has the wrong type or shape");
}

}  // namespace
}  // namespace hopmix::decode
