#include "hopmix/nn/pattern_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include "hopmix/base/error.h"

namespace hopmix::nn {
namespace {

// Of one number a token.
PatternCache cache_of(const std::string& spec, int64_t length = 0) {
  return {Pattern(spec, 1), {{"x", {}}}, length};
}

State fresh() {
  State state;
  state.tensors["x"] = torch::empty({2, 0});
  return state;
}

// Token i's entry of sequence b: i + b / 2.
Tensor entry(int64_t i) { return static_cast<float>(i) + torch::tensor({{0.f}, {0.5f}}); }

// Reads return exactly the pattern's row, each entry at the place given by `tokens`. What is held
// is no more than the next row if the pattern inherits, in as many slots as that ever needs, and no
// more than the tokens with a future reader if its length is known.
void expect_row(PatternCache& cache, const Pattern& pattern, const State& state,
                const std::vector<int32_t>& most_live = {}) {
  const int64_t i = state.position;
  std::vector<int32_t> row;
  pattern.row(i, row);
  std::vector<int32_t> tokens = cache.tokens(state);
  const Tensor read = cache.read(state, "x");
  ASSERT_EQ(read.size(1), static_cast<int64_t>(tokens.size())) << i;
  for (size_t k = 0; k < tokens.size(); ++k) {
    ASSERT_TRUE(
        torch::equal(read.select(1, static_cast<int64_t>(k)), entry(tokens[k]).select(1, 0)))
        << i;
  }
  std::sort(tokens.begin(), tokens.end());
  ASSERT_EQ(tokens, row) << i;
  const int64_t held = cache.held(i);
  if (pattern.inherits()) {
    ASSERT_EQ(held, static_cast<int64_t>(row.size())) << i;
  } else if (most_live.empty()) {
    ASSERT_EQ(held, i);
  } else {
    ASSERT_EQ(held, most_live[i]);
  }
  ASSERT_EQ(cache.bytes(i, torch::kFloat32), state.bytes() / 2) << i;
}

struct Kept {
  std::string spec;
  int64_t length = 0;
};

class PatternCacheTest : public testing::TestWithParam<Kept> {
 protected:
  PatternCache cache = cache_of(GetParam().spec, GetParam().length);
  const std::vector<int32_t> most_live =
      GetParam().length > 0 ? last_use(Pattern(GetParam().spec, GetParam().length)).used
                            : std::vector<int32_t>();
  Pattern pattern_of(int64_t n) const { return Pattern(GetParam().spec, n); }
};

TEST_P(PatternCacheTest, ReadsTheRowOfEachToken) {
  const int64_t time = 300;
  const Pattern pattern = pattern_of(time + 1);
  State state = fresh();
  for (int64_t i = 0; i < time; ++i) {
    expect_row(cache, pattern, state, most_live);
    cache.append(state, {entry(i)});
    ++state.position;
  }
}

TEST_P(PatternCacheTest, ExtendIsManyAppends) {
  const Pattern pattern = pattern_of(1000);
  State state = fresh();
  for (const int64_t time : {1, 2, 63, 64, 65, 1, 200, 3}) {
    std::vector<Tensor> entries;
    for (int64_t i = 0; i < time; ++i) entries.push_back(entry(state.position + i));
    cache.extend(state, {torch::cat(entries, 1)});
    state.position += time;
    expect_row(cache, pattern, state, most_live);
    for (int i = 0; i < 5; ++i) {
      cache.append(state, {entry(state.position)});
      ++state.position;
      expect_row(cache, pattern, state, most_live);
    }
  }
}

TEST_P(PatternCacheTest, JoinedRowsReadWhatRowsRead) {
  const int64_t before = 70, time = 40;
  const Pattern pattern = pattern_of(before + time);
  State state = fresh();
  for (; state.position < before; ++state.position) {
    cache.append(state, {entry(state.position)});
  }
  std::vector<float> tokens;
  const Tensor held = cache.held_rows(state, "x")[0].contiguous();
  tokens.assign(held.data_ptr<float>(), held.data_ptr<float>() + held.numel());
  for (int64_t i = before; i < before + time; ++i) tokens.push_back(static_cast<float>(i));
  const auto [row_ptr, cols] = cache.joined_rows(state, time);
  ASSERT_EQ(row_ptr.size(0), static_cast<int64_t>(tokens.size()) + 1);
  EXPECT_EQ(row_ptr[held.numel()].item<int64_t>(), 0) << "rows of held tokens are empty";
  for (int64_t i = 0; i < time; ++i) {
    const int64_t r = held.numel() + i;
    std::vector<int32_t> expected, read;
    pattern.row(before + i, expected);
    for (int64_t c = row_ptr[r].item<int64_t>(); c < row_ptr[r + 1].item<int64_t>(); ++c) {
      read.push_back(static_cast<int32_t>(tokens[cols[c].item<int32_t>()]));
    }
    std::sort(read.begin(), read.end());
    ASSERT_EQ(read, expected) << i;
  }
}

TEST_P(PatternCacheTest, AForkGoesItsOwnWay) {
  const Pattern pattern = pattern_of(200);
  State state = fresh();
  for (; state.position < 40; ++state.position) {
    cache.append(state, {entry(state.position)});
  }
  State fork = state;
  for (; fork.position < 150; ++fork.position) {
    expect_row(cache, pattern, fork, most_live);
    cache.append(fork, {entry(fork.position)});
    cache.append(state, {torch::full({2, 1}, -1)});
    ++state.position;
  }
  // What was read before the append is unchanged.
  const Tensor read = cache.read(fork, "x"), before = read.clone();
  for (; fork.position < 160; ++fork.position) {
    cache.append(fork, {torch::full({2, 1}, -1)});
  }
  EXPECT_TRUE(torch::equal(read, before));
}

TEST_P(PatternCacheTest, AFilledStateGoesOn) {
  const Pattern pattern = pattern_of(2000);
  State state = fresh();
  cache.fill(state, 1500);
  for (; state.position < 1600; ++state.position) {
    std::vector<int32_t> row, tokens = cache.tokens(state);
    pattern.row(state.position, row);
    std::sort(tokens.begin(), tokens.end());
    ASSERT_EQ(tokens, row);
    ASSERT_EQ(cache.bytes(state.position, torch::kFloat32), state.bytes() / 2);
    cache.append(state, {entry(state.position)});
  }
}

std::vector<Kept> all_kept() {
  std::vector<Kept> all;
  for (const char* spec :
       {"dense", "window(1)", "window(7)", "2^k", "cached(2^k)", "k^2+1", "cached(k^2+1)",
        "cached(fib)", "strided(5)", "global(3)", "blocks(16)", "fenwick", "random(4,1)",
        "window(3)|cached(2^k)", "window(2)|strided(9)"}) {
    all.push_back({spec});
  }
  for (const char* spec :
       {"2^k", "offsets(7,11)", "strided(5)", "random(4,1)", "offsets(3)|global(2)"}) {
    all.push_back({spec, 2000});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Patterns, PatternCacheTest, testing::ValuesIn(all_kept()),
                         [](const auto& test) { return std::to_string(test.index); });

TEST(PatternCache, ATokenThatIsReadMuchLaterIsHeld) {
  // 5000 is beyond the length that the pattern is first bound to.
  PatternCache cache = cache_of("offsets(1,2,5000)");
  State state;
  state.tensors["x"] = torch::empty({1, 0});
  for (; state.position < 5003; ++state.position) {
    cache.append(state, {torch::full({1, 1}, static_cast<float>(state.position))});
  }
  EXPECT_TRUE(torch::equal(cache.read(state, "x"), torch::tensor({{3.f, 5001.f, 5002.f}})));
  EXPECT_LE(state.tensors.at("x").size(1), 5003 * 5 / 4);
}

TEST(PatternCache, OfAKnownLengthATokenIsHeldUntilItsLastReader) {
  PatternCache cache = cache_of("offsets(7,11)", 500);
  State state = fresh();
  const Pattern pattern("offsets(7,11)", 500);
  const std::vector<int32_t> live = last_use(pattern).used;
  for (; state.position < 500; ++state.position) {
    expect_row(cache, pattern, state, live);
    cache.append(state, {entry(state.position)});
  }
  EXPECT_EQ(state.bytes(), 11 * 2 * 4);
  cache.check_length(500);
  EXPECT_THROW(cache.check_length(501), Error);
  EXPECT_THROW(cache.read(state, "x"), Error);
}

}  // namespace
}  // namespace hopmix::nn
