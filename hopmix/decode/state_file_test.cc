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
  const auto with = [&](const std::string& key, const std::string& value) {
    bad = good;
    bad.metadata[key] = value;
    train::write_safetensors(file_, bad.tensors, bad.metadata);
    return refused();
  };
  EXPECT_TRUE(
      with("position", "3000")
          .starts_with(name + "is damaged: it does not hold the state of 3000 tokens: block 0: "));
  for (const char* position : {"many", "", "4.5", "-1", "100000000000000000000", "1e3", "null"}) {
    EXPECT_EQ(with("position", position), name + "is damaged: position = '" + position +
                                              "', unread = '[]' must be whole numbers");
  }
  for (const char* unread : {"[1.5]", "[\"1\"]", "[100000000000000000000]", "1", "{}x"}) {
    EXPECT_EQ(with("unread", unread), name + "is damaged: position = '30', unread = '" + unread +
                                          "' must be whole numbers");
  }
  EXPECT_EQ(with("unread", "[256]"), name + "is damaged: unread token 256 must be from 0 to 255");

  const std::string thirty = name + "is damaged: it does not hold the state of 30 tokens: ";
  const auto changed = [&](const std::string& tensor, const torch::Tensor& value) {
    bad = good;
    bad.tensors[tensor] = value;
    train::write_safetensors(file_, bad.tensors, bad.metadata);
    return refused();
  };
  const torch::Tensor s = good.tensors.at("2.S"), tokens = good.tensors.at("0.tokens");
  EXPECT_EQ(changed("2.S", s.narrow(1, 0, 1).clone()),
            thirty + "block 2: tensor 'S' is Float [1, 1, 4, 8], but must be Float [1, 4, 4, 8]");
  EXPECT_EQ(changed("2.S", s.view(torch::kInt32)),
            thirty + "block 2: tensor 'S' is Int [1, 4, 4, 8], but must be Float [1, 4, 4, 8]");
  EXPECT_EQ(changed("2.S", torch::full_like(s, NAN)),
            name + "is damaged: tensor '2.S' has a number that is not finite");
  for (const torch::Tensor& other : {tokens + 1, tokens - 100, torch::full_like(tokens, 1 << 30)}) {
    EXPECT_EQ(changed("0.tokens", other),
              thirty + "block 0: tensor 'tokens' must name the tokens that token 30 reads");
  }
  EXPECT_EQ(changed("0.other", s), thirty + "block 0: tensor 'other' does not belong to it");
  for (const char* extra : {"3.S", "S", "10.k"}) {
    EXPECT_EQ(changed(extra, s),
              name + "is damaged: tensor '" + extra + "' belongs to no block of the model");
  }
  bad = good;
  bad.tensors.erase("0.z");
  train::write_safetensors(file_, bad.tensors, bad.metadata);
  EXPECT_EQ(refused(), thirty + "block 0: tensor 'z' is missing");
}

}  // namespace
}  // namespace hopmix::decode
