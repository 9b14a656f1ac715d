#include "hopmix/nn/past.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "hopmix/base/error.h"
#include "hopmix/pattern/matrix_market.h"

namespace hopmix::nn {
namespace {

State fresh() {
  State state;
  state.tensors["x"] = torch::empty({2, 0});
  return state;
}

// Token i's entry of sequence b: i + b / 2.
Tensor entry(int64_t i) { return static_cast<float>(i) + torch::tensor({0.f, 0.5f}); }

// Reads return exactly the pattern's row, each entry at the place given by `tokens`. What is held
// is no more than the next row if the pattern inherits, in as many slots as that ever needs, and no
// more than the tokens with a future reader if its length is known.
void expect_row(const Past& past, const Pattern& pattern, const State& state,
                const std::vector<int32_t>& most_live = {}) {
  const int64_t i = state.position;
  std::vector<int32_t> row;
  pattern.row(i, row);
  std::vector<int32_t> tokens = past.tokens(state);
  const Tensor read = past.read(state, "x");
  ASSERT_EQ(read.size(1), static_cast<int64_t>(tokens.size())) << i;
  for (size_t k = 0; k < tokens.size(); ++k) {
    ASSERT_TRUE(torch::equal(read.select(1, static_cast<int64_t>(k)), entry(tokens[k]))) << i;
  }
  std::sort(tokens.begin(), tokens.end());
  ASSERT_EQ(tokens, row) << i;
  const int64_t held = past.held(i);
  if (pattern.inherits()) {
    ASSERT_EQ(held, static_cast<int64_t>(row.size())) << i;
  } else if (most_live.empty()) {
    ASSERT_EQ(held, i);
  } else {
    ASSERT_EQ(held, most_live[i]);
  }
  ASSERT_EQ(past.slots(i), state.tensors.at("x").size(1)) << i;
  ASSERT_EQ(past.bytes(i, 4), state.bytes() / 2) << i;
}

struct Kept {
  std::string spec;
  int64_t length = 0;
};

class PastTest : public testing::TestWithParam<Kept> {
 protected:
  const Past past{GetParam().spec, GetParam().length};
  const std::vector<int32_t> most_live =
      GetParam().length > 0 ? last_use(Pattern(GetParam().spec, GetParam().length)).used
                            : std::vector<int32_t>();
  Pattern pattern_of(int64_t n) const { return Pattern(GetParam().spec, n); }
};

TEST_P(PastTest, ReadsTheRowOfEachToken) {
  const int64_t time = 300;
  const Pattern pattern = pattern_of(time + 1);
  State state = fresh();
  for (int64_t i = 0; i < time; ++i) {
    expect_row(past, pattern, state, most_live);
    past.append(state, {{"x", entry(i)}});
    ++state.position;
  }
}

TEST_P(PastTest, ExtendIsManyAppends) {
  const Pattern pattern = pattern_of(1000);
  State state = fresh();
  for (const int64_t time : {1, 2, 63, 64, 65, 1, 200, 3}) {
    std::vector<Tensor> entries;
    for (int64_t i = 0; i < time; ++i) entries.push_back(entry(state.position + i));
    past.extend(state, {{"x", torch::stack(entries, 1)}});
    state.position += time;
    expect_row(past, pattern, state, most_live);
    for (int i = 0; i < 5; ++i) {
      past.append(state, {{"x", entry(state.position)}});
      ++state.position;
      expect_row(past, pattern, state, most_live);
    }
  }
}

TEST_P(PastTest, JoinedRowsReadWhatRowsRead) {
  const int64_t before = 70, time = 40;
  const Pattern pattern = pattern_of(before + time);
  State state = fresh();
  for (; state.position < before; ++state.position) {
    past.append(state, {{"x", entry(state.position)}});
  }
  std::vector<float> tokens;
  const Tensor held = past.held_rows(state, "x")[0].contiguous();
  tokens.assign(held.data_ptr<float>(), held.data_ptr<float>() + held.numel());
  for (int64_t i = before; i < before + time; ++i) tokens.push_back(static_cast<float>(i));
  const auto [row_ptr, cols] = past.joined_rows(state, time);
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

TEST_P(PastTest, AForkGoesItsOwnWay) {
  const Pattern pattern = pattern_of(200);
  State state = fresh();
  for (; state.position < 40; ++state.position) {
    past.append(state, {{"x", entry(state.position)}});
  }
  State fork = state;
  for (; fork.position < 150; ++fork.position) {
    expect_row(past, pattern, fork, most_live);
    past.append(fork, {{"x", entry(fork.position)}});
    past.append(state, {{"x", torch::full({2}, -1)}});
    ++state.position;
  }
  // What was read before the append is unchanged.
  const Tensor read = past.read(fork, "x"), before = read.clone();
  for (; fork.position < 160; ++fork.position) {
    past.append(fork, {{"x", torch::full({2}, -1)}});
  }
  EXPECT_TRUE(torch::equal(read, before));
}

TEST_P(PastTest, AFilledStateGoesOn) {
  const Pattern pattern = pattern_of(2000);
  State state = fresh();
  past.fill(state, 1500);
  for (; state.position < 1600; ++state.position) {
    std::vector<int32_t> row, tokens = past.tokens(state);
    pattern.row(state.position, row);
    std::sort(tokens.begin(), tokens.end());
    ASSERT_EQ(tokens, row);
    ASSERT_EQ(past.bytes(state.position, 4), state.bytes() / 2);
    past.append(state, {{"x", entry(state.position)}});
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

INSTANTIATE_TEST_SUITE_P(Patterns, PastTest, testing::ValuesIn(all_kept()),
                         [](const auto& test) { return std::to_string(test.index); });

TEST(Past, ATokenThatIsReadMuchLaterIsHeld) {
  // 5000 is beyond the length that the pattern is first bound to.
  const Past past("offsets(1,2,5000)");
  State state;
  state.tensors["x"] = torch::empty({1, 0});
  for (; state.position < 5003; ++state.position) {
    past.append(state, {{"x", torch::full({1}, static_cast<float>(state.position))}});
  }
  EXPECT_TRUE(torch::equal(past.read(state, "x"), torch::tensor({{3.f, 5001.f, 5002.f}})));
  EXPECT_LE(past.slots(5003), 5003 * 5 / 4);
}

TEST(Past, CachedPatternsHoldTheirPeakAndNotATokenMore) {
  const Past past("cached(k^2+1)");
  for (const int64_t t : {100, 10000, 1000000}) {
    EXPECT_LE(past.held(t), static_cast<int64_t>(std::sqrt(static_cast<double>(t))) + 1);
  }
  for (const int64_t t : {100, 3000}) {
    int64_t peak = 0;
    for (int64_t i = 0; i <= t; ++i) peak = std::max(peak, past.held(i));
    EXPECT_EQ(past.slots(t), peak);
  }
  EXPECT_EQ(Past("cached(k^2+1)").slots(299), 14) << "docs/patterns.md";
  EXPECT_EQ(Past("cached(2^k)").slots(299), 9);
  EXPECT_EQ(Past("window(7)").slots(int64_t{1} << 20), 7);
}

TEST(Past, OfAKnownLengthATokenIsHeldUntilItsLastReader) {
  const Past past("offsets(7,11)", 500);
  EXPECT_EQ(past.slots(500), 11);
  State state = fresh();
  const Pattern pattern("offsets(7,11)", 500);
  const std::vector<int32_t> live = last_use(pattern).used;
  for (; state.position < 500; ++state.position) {
    expect_row(past, pattern, state, live);
    past.append(state, {{"x", entry(state.position)}});
  }
  EXPECT_EQ(state.bytes(), 11 * 2 * 4);
  past.check_length(500);
  EXPECT_THROW(past.check_length(501), Error);
  EXPECT_THROW(past.read(state, "x"), Error);
}

TEST(Past, AFileOfATextHasALengthOfItsOwn) {
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / ("past " + std::to_string(getpid()) + ".mtx");
  write_matrix_market(file, to_csr(Pattern("k^2+1", 3000)));
  const Past past("dag(" + file.string() + ")");
  std::filesystem::remove(file);  // it is not read again
  EXPECT_EQ(past.held(3000), last_use(Pattern("k^2+1", 3000)).used.back());
  const Pattern pattern("k^2+1", 3000);
  for (const int64_t i : {100, 2999}) {
    std::vector<int32_t> row;
    pattern.row(i, row);
    EXPECT_EQ(past.row(i), row);
  }
}

}  // namespace
}  // namespace hopmix::nn
