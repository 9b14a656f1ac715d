#include "hopmix/bench/cases.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <set>

#include "hopmix/base/testing.h"
#include "hopmix/bench/allocations.h"

namespace hopmix::bench {
namespace {

const Case& find(const std::string& name) {
  for (const Case& one : cases()) {
    if (one.name == name) return one;
  }
  throw Error("no case " + name);
}

std::vector<std::string> names(const std::vector<std::string>& chosen) {
  std::vector<std::string> list;
  for (const Case& one : select_cases(chosen)) list.push_back(one.name);
  return list;
}

TEST(Cases, HaveNamesOfTheirOwn) {
  std::set<std::string> seen;
  for (const Case& one : cases()) {
    EXPECT_TRUE(seen.insert(one.name).second) << one.name;
    EXPECT_NE(one.computes, "");
  }
}

TEST(Cases, AreSelectedByNameAndGroup) {
  EXPECT_EQ(names({"sdpa"}), std::vector<std::string>{"sdpa"});
  EXPECT_EQ(names({"sdpa", "glr k^2+1"}), (std::vector<std::string>{"glr k^2+1", "sdpa"}));
  EXPECT_GE(names({"glr_attention"}).size(), 6u);
  for (const std::string& name : names({})) EXPECT_FALSE(name.starts_with("long")) << name;
  EXPECT_EQ(error_of([] { names({"sdpaa"}); }), "unknown benchmark 'sdpaa'; did you mean 'sdpa'?");
}

TEST(Cases, CountReads) {
  EXPECT_EQ(find("glr_attention k^2+1").reads(300), 3597);
  EXPECT_EQ(find("sparse_attention k^2+1").reads(300), 3897) << "and itself";
  EXPECT_EQ(find("glr_attention dense").reads(100), 4950);
  EXPECT_EQ(find("sdpa").reads(100), 0);
}

TEST(Cases, RunWhereTheListOfRowsIsTooLong) {
  // dense on 3000 tokens would be a list of 18 MB, so its rows are generated as they are read.
  const Shape shape{.batch = 1, .heads = 1, .width = 1, .length = 3000};
  const Problem problem = make_problem(find("glr_attention dense"), shape, at::kFloat);
  EXPECT_TRUE(problem.forward(problem.inputs).isfinite().all().item<bool>());
}

TEST(Cases, RunInBothTypesAndGiveGradientsToEveryInput) {
  const Shape shape{.batch = 2, .heads = 2, .width = 16, .length = 20};
  for (const Case& one : cases()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Problem problem = make_problem(one, shape, dtype);
      const Tensor y = problem.forward(problem.inputs);
      EXPECT_EQ(y.scalar_type(), dtype) << one.name;
      EXPECT_EQ(y.numel(), 2 * 2 * 16 * 20) << one.name;
      EXPECT_TRUE(y.isfinite().all().item<bool>()) << one.name;
      for (const Tensor& x : torch::autograd::grad({y.sum()}, problem.inputs)) {
        EXPECT_TRUE(x.isfinite().all().item<bool>()) << one.name;
      }
    }
  }
}

// Two cases that compute the same function, `ours` on [B,T,H,D] and `theirs` on [B,H,T,D] of the
// same numbers. Unless outputs and all gradients agree, their ratio is meaningless.
void expect_same(const std::string& ours, const std::string& theirs, int64_t length) {
  const Shape shape{.batch = 2, .heads = 3, .width = 16, .length = length};
  Problem a = make_problem(find(ours), shape, at::kDouble);
  Problem b = make_problem(find(theirs), shape, at::kDouble);
  ASSERT_EQ(a.inputs.size(), b.inputs.size());
  for (size_t i = 0; i < a.inputs.size(); ++i) {
    b.inputs[i] = a.inputs[i].detach().transpose(1, 2).contiguous().requires_grad_();
  }
  const Tensor y = a.forward(a.inputs), z = b.forward(b.inputs);
  EXPECT_TRUE(at::allclose(y, z.transpose(1, 2), 1e-10, 1e-10)) << theirs << " at " << length;
  const Tensor seed = at::randn_like(y);
  const auto da = torch::autograd::grad({y}, a.inputs, {seed});
  const auto db = torch::autograd::grad({z}, b.inputs, {seed.transpose(1, 2)});
  for (size_t i = 0; i < da.size(); ++i) {
    EXPECT_TRUE(at::allclose(da[i], db[i].transpose(1, 2), 1e-9, 1e-9))
        << "gradient " << i << " of " << theirs << " at " << length;
  }
}

TEST(Cases, TheDenseSolveIsTheDenseRecurrence) {
  for (const int64_t length : {1, 2, 65}) expect_same("glr_attention dense", "dense_solve", length);
}

TEST(Cases, AttentionIsThatOfPyTorch) {
  for (const int64_t length : {1, 20, 150}) expect_same("attention", "sdpa", length);
}

TEST(Cases, SelectionIsAttentionWithAndWithoutAMatrixOfScores) {
  for (const int64_t length : {1, 20, 150}) {
    for (const char* peer : {"sdpa", "topk_by_scores"}) expect_same("attention_topk", peer, length);
  }
}

// Packed keys and values, o, the indices and one block of scratch per thread, but never all scores,
// of which 65536 tokens have 2^32.
TEST(Cases, MemoryOfTheSelectionGrowsWithTokens) {
  const Shape shape{.batch = 1, .heads = 1, .width = 16, .length = 1 << 16};
  const Problem problem = make_problem(find("attention_topk"), shape, at::kFloat);
  const auto run = [&] {
    const at::NoGradGuard none;
    return problem.forward(problem.inputs);
  };
  const std::optional<int64_t> used = peak_allocated([&] { run(); });
  if (!used) GTEST_SKIP() << "malloc does not count here";
  const int64_t outputs = shape.length * (16 + 32) * 4, packed = shape.length * (16 + 16) * 4;
  EXPECT_GE(*used, outputs + packed);
  EXPECT_LE(*used, outputs + packed + at::get_num_threads() * (int64_t{1} << 20));
}

TEST(Cases, TheEagerChunksAreTheOperators) {
  for (const std::string name : {"linear_attention", "ssd", "gla", "delta_rule", "gated_delta_rule",
                                 "log_linear_attention"}) {
    for (const int64_t length : {1, 20, 64, 150}) {
      const Shape shape{.batch = 2, .heads = 3, .width = 16, .length = length};
      const Problem ours = make_problem(find(name), shape, at::kDouble);
      const Problem eager = make_problem(find("eager_" + name), shape, at::kDouble);
      const Tensor y = ours.forward(ours.inputs), z = eager.forward(ours.inputs);
      EXPECT_TRUE(at::allclose(y, z, 1e-10, 1e-10)) << name << " at " << length;
      const Tensor seed = at::randn_like(y);
      const auto dy = torch::autograd::grad({y}, ours.inputs, {seed});
      const auto dz = torch::autograd::grad({z}, ours.inputs, {seed});
      for (size_t i = 0; i < dy.size(); ++i) {
        EXPECT_TRUE(at::allclose(dy[i], dz[i], 1e-9, 1e-9)) << "gradient " << i << " of " << name;
      }
    }
  }
}

TEST(Cases, LimitsAreStated) {
  EXPECT_EQ(find("dense_solve").longest(), 8192);
  EXPECT_GT(find("glr_attention k^2+1").longest(), int64_t{1} << 40);
  for (const Case& one : cases()) {
    EXPECT_EQ(one.longest() < (int64_t{1} << 40), std::string(one.limit_reason()) != "")
        << one.name;
  }
}

}  // namespace
}  // namespace hopmix::bench
