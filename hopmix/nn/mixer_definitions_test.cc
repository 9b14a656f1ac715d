// Single mixers against their definitions, dense and in float64, and against each other.
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>

#include "hopmix/nn/registry.h"
#include "hopmix/pattern/matrix_market.h"

namespace hopmix::nn {
namespace {

// A window as long as the text reads the same tokens as `dense`, but never uses blocks of matrix
// products.
TEST(Glr, OnDenseTheSameReadByReadAndByBlocks) {
  const auto on = [](const char* pattern) {
    torch::manual_seed(3);
    toml::table keys{{"pattern", pattern}};
    config::Table table(keys);
    const auto mixer =
        find_mixer("glr").read(table, BlockDefaults{.width = 24, .heads = 4}).build();
    mixer->to(torch::kFloat64);
    return mixer;
  };
  const torch::NoGradGuard no_grad;
  for (const int64_t time : {31, 127, 128, 200}) {
    const Tensor x = torch::randn({2, time, 24}, torch::kFloat64);
    Context context;
    const Tensor blocks = on("dense")->forward(x, context);
    EXPECT_TRUE(torch::allclose(blocks, on("window(1000)")->forward(x, context), 1e-12, 1e-12))
        << time;
  }
}

// With blocks of at least half the text nothing is cut off.
TEST(SlidingWindowRecurrence, WithLongBlocksTheGatedRecurrence) {
  const auto run = [](const char* name, const std::string& text) {
    toml::table keys = config::parse(text, name);
    torch::manual_seed(3);
    config::Table table(keys);
    const auto mixer = find_mixer(name).read(table, BlockDefaults{.width = 24, .heads = 4}).build();
    torch::manual_seed(4);
    Context context;
    return mixer->forward(torch::randn({2, 60, 24}), context);
  };
  const torch::NoGradGuard no_grad;
  const Tensor whole = run("gated_linear_recurrence", "");
  EXPECT_TRUE(torch::equal(run("sliding_window_recurrence", "block=60"), whole));
  EXPECT_TRUE(torch::allclose(run("sliding_window_recurrence", "block=30"), whole));
  EXPECT_FALSE(torch::allclose(run("sliding_window_recurrence", "block=29"), whole));
}

// The slope of sqrt(1 - a^2) is finite even where exp(log a) rounds to 1.
TEST(Griffin, GradientsAreFiniteWhereNothingDecays) {
  toml::table keys;
  config::Table table(keys);
  const auto mixer =
      find_mixer("griffin").read(table, BlockDefaults{.width = 24, .heads = 4}).build();
  {
    const torch::NoGradGuard no_grad;
    mixer->named_parameters()["lambda"].fill_(-200);
  }
  Context context;
  mixer->forward(torch::randn({2, 33, 24}), context).sum().backward();
  for (const auto& item : mixer->named_parameters()) {
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
  }
}

// y_i = sum over j of (I - A)^{-1}_ij (C_i . dt_j B_j) x_j + D x_i, dense and in float64, on a
// graph from a file.
TEST(Chimera, IsTheResolventOfTheGraph) {
  const int64_t time = 40, width = 12, heads = 3, states = 5;
  const Csr graph = to_csr(Pattern("random(4,1)|2^k", time));
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / ("chimera " + std::to_string(getpid()) + ".mtx");
  write_matrix_market(file, graph);
  toml::table keys{{"pattern", "dag(" + file.string() + ")"}, {"state", states}};
  config::Table table(keys);
  const auto mixer = find_mixer("chimera")
                         .read(table, BlockDefaults{.width = width, .heads = heads, .length = time})
                         .build();
  mixer->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  const Tensor x = torch::randn({1, time, width}, torch::kFloat64);
  Context context;
  const Tensor y = mixer->forward(x, context);
  State state = mixer->initial_state(1);
  for (int64_t t = 0; t < time; ++t) {
    const Tensor one = mixer->step(x.select(1, t), state, context);
    EXPECT_LT((one - y.select(1, t)).abs().max().item<double>(), 1e-12) << t;
  }
  std::filesystem::remove(file);

  auto parameters = mixer->named_parameters();
  Tensor previous = torch::zeros_like(x[0]);
  previous.slice(0, 1).copy_(x[0].slice(0, 0, time - 1));
  const Tensor mapped = torch::matmul(torch::cat({x[0], previous}, 1), parameters["in.weight"].t());
  const auto parts = mapped.split_with_sizes({width, width, states, states, heads, heads}, 1);
  std::vector<Tensor> outputs;
  for (int64_t h = 0; h < heads; ++h) {
    const Tensor dt = torch::softplus(parts[4].select(1, h) + parameters["bias"][0][h]);
    const Tensor ds = torch::softplus(parts[5].select(1, h) + parameters["bias"][1][h]);
    Tensor a = torch::zeros({time, time}, torch::kFloat64);
    for (int64_t i = 0; i < time; ++i) {
      for (int64_t r = graph.row_ptr[i]; r < graph.row_ptr[i + 1]; ++r) {
        const int64_t j = graph.cols[r], bits = std::bit_width(static_cast<uint64_t>(i - j));
        const Tensor de = torch::softplus(parameters["edges"][bits - 1][h]);
        a[i][j] = torch::exp(-(dt[i] + ds[j] + de) / 3) / (graph.row_ptr[i + 1] - graph.row_ptr[i]);
      }
    }
    const Tensor resolvent = torch::inverse(torch::eye(time, torch::kFloat64) - a);
    const Tensor scores = torch::matmul(parts[3], (dt.unsqueeze(1) * parts[2]).t());
    const Tensor v = parts[1].slice(1, h * width / heads, (h + 1) * width / heads);
    outputs.push_back(torch::matmul(resolvent * scores, v) + parameters["d"][h] * v);
  }
  Tensor expected = torch::cat(outputs, 1) * torch::silu(parts[0]);
  expected = expected / (expected.square().mean(1, true) + 1e-6).sqrt();
  expected = torch::matmul(expected * parameters["norm.weight"], parameters["out.weight"].t());
  EXPECT_LT((y[0] - expected).abs().max().item<double>(), 1e-12);
}

TEST(LogLinear, ATextLongerThanItsLevelsIsAnError) {
  toml::table keys{{"levels", 4}};
  config::Table table(keys);
  const auto mixer =
      find_mixer("log_linear_mamba2").read(table, BlockDefaults{.width = 24, .heads = 4}).build();
  const torch::NoGradGuard no_grad;
  Context context;
  mixer->forward(torch::randn({1, 8, 24}), context);
  EXPECT_THROW(mixer->forward(torch::randn({1, 9, 24}), context), c10::ValueError);
  State state = mixer->initial_state(1);
  for (int64_t t = 0; t < 8; ++t) mixer->step(torch::randn({1, 24}), state, context);
  try {
    mixer->step(torch::randn({1, 24}), state, context);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "levels = 4: must be at least 5 for 9 tokens");
  }
}

// The mixer by its definition: Y = (I - B)^{-1} A V, dense and in float64.
class DefinitionTest : public testing::TestWithParam<std::string> {};

TEST_P(DefinitionTest, GlrIsTheDenseSolve) {
  const int64_t time = 50, width = 24, heads = 4;
  torch::manual_seed(3);
  toml::table keys{{"pattern", "k^2+1"}, {"coefficients", GetParam()}};
  config::Table table(keys);
  const auto mixer =
      find_mixer("glr").read(table, BlockDefaults{.width = width, .heads = heads}).build();
  mixer->to(torch::kFloat64);
  const torch::NoGradGuard no_grad;
  const Tensor x = torch::randn({1, time, width}, torch::kFloat64);
  Context context;
  const Tensor y = mixer->forward(x, context);

  const auto parameters = mixer->named_parameters();
  Tensor previous = torch::zeros_like(x[0]);
  previous.slice(0, 1).copy_(x[0].slice(0, 0, time - 1));
  const Tensor u = torch::cat({x[0], previous}, 1);
  const Tensor qkv = torch::matmul(u, parameters["qkv.weight"].t());
  const bool normalized = GetParam().starts_with("normalized");
  const Tensor logits = torch::matmul(u, parameters["gates.weight"].t()) + parameters["gates.bias"];
  const Tensor gates = normalized ? logits : torch::sigmoid(logits);
  Tensor allowed = torch::zeros({time, time}, torch::kBool);
  for (int64_t i = 0; i < time; ++i) {
    for (int64_t k = 0; k * k + 1 <= i; ++k) allowed[i][i - (k * k + 1)] = true;
  }
  // exp(q_i . k_j / sqrt(D)) where mask is true, 0 elsewhere.
  const auto exponentials = [&](int64_t q, int64_t k, int64_t h, const Tensor& mask) {
    const int64_t d = width / heads;
    const auto part = [&](int64_t p) {
      return qkv.slice(1, p * width + h * d, p * width + (h + 1) * d);
    };
    const Tensor scores = torch::matmul(part(q), part(k).t()) / std::sqrt(static_cast<double>(d));
    return torch::where(mask, scores.exp(), torch::zeros_like(scores));
  };
  const auto softmax = [&](int64_t q, int64_t k, int64_t h, const Tensor& mask) {
    const Tensor weights = exponentials(q, k, h, mask);
    return weights / weights.sum(1, true).clamp_min(1e-300);
  };
  std::vector<Tensor> outputs;
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t d = width / heads;
    const Tensor v = qkv.slice(1, 2 * width + h * d, 2 * width + (h + 1) * d);
    const Tensor gate = gates.select(1, h);
    Tensor a, b;
    if (normalized) {
      const Tensor e = exponentials(0, 1, h, allowed);
      a = torch::matmul(e, torch::diag(gates.select(1, heads + h).exp())) +
          torch::diag(gates.select(1, 2 * heads + h).exp());
      b = GetParam() == "normalized_read" ? torch::matmul(e, torch::diag(gate.exp()))
                                          : gate.exp().unsqueeze(1) * e;
      const Tensor sums = a.sum(1, true) + b.sum(1, true);
      a = a / sums;
      b = b / sums;
    } else if (GetParam() == "shared") {
      b = gate.unsqueeze(1) * softmax(0, 1, h, allowed);
      a = torch::matmul(b, torch::diag(gates.select(1, heads + h))) +
          torch::diag(gates.select(1, 2 * heads + h));
    } else {
      b = gate.unsqueeze(1) * softmax(0, 1, h, allowed);
      a = softmax(3, 4, h, allowed | torch::eye(time, torch::kBool));
    }
    const Tensor identity = torch::eye(time, torch::kFloat64);
    Tensor solved = torch::matmul(torch::inverse(identity - b), torch::matmul(a, v));
    if (normalized) {
      solved = solved / (solved.square().mean(1, true) + 1e-6).sqrt() * parameters["norm.weight"];
    }
    outputs.push_back(solved);
  }
  const Tensor expected = torch::matmul(torch::cat(outputs, 1), parameters["out.weight"].t());
  EXPECT_LT((y[0] - expected).abs().max().item<double>(), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Glr, DefinitionTest,
                         testing::Values("shared", "independent", "normalized", "normalized_read"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace hopmix::nn
