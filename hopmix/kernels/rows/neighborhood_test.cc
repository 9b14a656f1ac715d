#include "hopmix/kernels/rows/neighborhood.h"

#include <gtest/gtest.h>

#include <set>

#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

using namespace testing;  // NOLINT: the helpers of these tests

// Retrieved for T tokens and H heads, as a full layer would: best first, without doubles, -1 where
// fewer than K are visible, but also where there are more.
struct Problem {
  ListCase c;
  Sequences sequences = c.sizes.sequences();
  std::vector<int32_t> indices = random_lists(sequences, c.lists, c.width, false);

  std::vector<int32_t> run(const std::vector<int64_t>& widths, bool cumulative) const {
    const int64_t size = neighborhood_size(widths, cumulative);
    std::vector<int32_t> out(sequences.tokens() * c.lists * size, -7);  // must all be written
    neighborhood({indices.data(), c.lists, c.width, sequences}, widths, cumulative, out.data());
    return out;
  }

  // N^(k)(i) of the definition.
  std::set<int32_t> first(const Sequence& s, int64_t head, int64_t i, int64_t k) const {
    std::set<int32_t> found;
    for (int64_t r = 0, taken = 0; r < c.width && taken < k; ++r) {
      const int32_t t = indices[((sequences.first_token(s) + i) * c.lists + head) * c.width + r];
      if (t < 0) continue;
      found.insert(t);
      ++taken;
    }
    return found;
  }

  // N^(k1..km)(i), by its recursion.
  std::set<int32_t> exact(const Sequence& s, int64_t head, int64_t i,
                          std::span<const int64_t> widths) const {
    const int64_t last = widths.back();
    if (widths.size() == 1) return first(s, head, i, last);
    std::set<int32_t> all;
    for (const int32_t t : exact(s, head, i, widths.first(widths.size() - 1))) {
      all.merge(first(s, head, t, last));
    }
    return all;
  }

  std::set<int32_t> expected(const Sequence& s, int64_t head, int64_t i,
                             std::span<const int64_t> widths, bool cumulative) const {
    if (!cumulative) return exact(s, head, i, widths);
    std::set<int32_t> all;
    for (size_t m = 1; m <= widths.size(); ++m) all.merge(exact(s, head, i, widths.first(m)));
    return all;
  }
};

const std::vector<std::vector<int64_t>> kWidths = {
    {1}, {5}, {1, 1}, {4, 1, 1}, {5, 1, 1, 1}, {1, 3}, {2, 3}, {3, 2, 2}, {1, 1, 2, 1}};

std::vector<ListCase> sizes() {
  std::vector<ListCase> all;
  for (const int64_t time : {1, 2, 3, 63, 64, 65, 100, 1000}) {
    all.push_back({{kNoPattern, time, 1, 1, 2, 3, 3}, 3, 5});
  }
  all.push_back({{kNoPattern, 70, 1, 1, 1, 2, 2, {0, 0, 1, 34, 34, 69, 70, 70}}, 2, 6});
  return all;
}

TEST(Neighborhood, IsTheSetOfItsDefinition) {
  for (const ListCase& c : sizes()) {
    const Problem p{c};
    for (const auto& widths : kWidths) {
      for (const bool cumulative : {false, true}) {
        SCOPED_TRACE(::testing::PrintToString(c) + " widths " + ::testing::PrintToString(widths));
        const int64_t size = neighborhood_size(widths, cumulative);
        const std::vector<int32_t> out = p.run(widths, cumulative);
        for (const Sequence& s : p.sequences.list) {
          for (int64_t i = 0; i < s.length; ++i) {
            for (int64_t h = 0; h < c.lists; ++h) {
              const auto set = p.expected(s, h, i, widths, cumulative);
              std::vector<int32_t> row(set.begin(), set.end());
              ASSERT_LE(std::ssize(row), size);
              row.resize(size, -1);
              const auto at = out.begin() + ((p.sequences.first_token(s) + i) * c.lists + h) * size;
              ASSERT_EQ(std::vector<int32_t>(at, at + size), row) << "token " << i << " head " << h;
            }
          }
        }
      }
    }
  }
}

// By hand: 3 -> 2, 1; 2 -> 0, 1; 1 -> 0; 0 -> 0.
TEST(Neighborhood, OfFourTokens) {
  const std::vector<int32_t> indices = {0, -1, -1, 0, 0, 1, 2, 1};
  const Sequences sequences = Sequences::batched(1, 4);
  const auto last = [&](const std::vector<int64_t>& widths, bool cumulative) {
    const int64_t size = neighborhood_size(widths, cumulative);
    std::vector<int32_t> out(4 * size);
    neighborhood({indices.data(), 1, 2, sequences}, widths, cumulative, out.data());
    return std::vector<int32_t>(out.end() - size, out.end());
  };
  EXPECT_EQ(last({2}, false), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(last({1}, false), (std::vector<int32_t>{2}));
  EXPECT_EQ(last({2, 1}, false), (std::vector<int32_t>{0, -1}));
  EXPECT_EQ(last({1, 2}, false), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(last({2, 1}, true), (std::vector<int32_t>{0, 1, 2, -1}));
  EXPECT_EQ(last({1, 1, 1}, false), (std::vector<int32_t>{0}));
}

TEST(Neighborhood, SizesAreThoseOfThePaper) {
  const std::vector<int64_t> four = {8, 1, 1, 1}, three = {11, 1, 1}, two = {16, 1},
                             some = {3, 2, 4};
  EXPECT_EQ(neighborhood_size(four, true), 32);
  EXPECT_EQ(neighborhood_size(three, true), 33);
  EXPECT_EQ(neighborhood_size(two, true), 32);
  EXPECT_EQ(neighborhood_size(some, true), 3 + 6 + 24);
  EXPECT_EQ(neighborhood_size(some, false), 24);
  const std::vector<int64_t> huge = {1 << 20, 1 << 20}, edge = {(1u << 31) - 1},
                             wide = {1 << 16, 1 << 15};
  EXPECT_EQ(neighborhood_size(huge, false), -1);
  EXPECT_EQ(neighborhood_size(wide, false), -1);
  EXPECT_EQ(neighborhood_size(edge, false), (int64_t{1} << 31) - 1);
}

TEST(Neighborhood, SameForAnyNumberOfThreads) {
  const Problem p{{{kNoPattern, 3000, 1, 1, 1, 2, 2}, 2, 6}};
  for (const auto& widths : kWidths) {
    expect_same_for_any_threads([&] { return p.run(widths, true); });
  }
}

}  // namespace
}  // namespace hopmix::kernels
