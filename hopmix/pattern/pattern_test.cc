// Every kind of pattern against its definition, written out as "token i reads j".
#include "hopmix/pattern/pattern.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "hopmix/base/error.h"
#include "hopmix/pattern/offsets.h"

namespace hopmix {
namespace {

constexpr int64_t kLargest = (int64_t{1} << 31) - 1;

std::vector<int32_t> row(const Pattern& pattern, int64_t i) {
  std::vector<int32_t> cols = {-7};  // row() must replace what is there
  pattern.row(i, cols);
  return cols;
}

using Reads = std::function<bool(int64_t i, int64_t j)>;

Reads at_distances(std::function<int64_t(int64_t)> f) {
  return [f](int64_t i, int64_t j) {
    for (int64_t k = 0; f(k) <= i - j; ++k) {
      if (f(k) == i - j) return true;
    }
    return false;
  };
}

int64_t fibonacci(int64_t k) {
  int64_t a = 1, b = 2;
  for (; k > 0; --k) b += std::exchange(a, b);
  return a;
}

// ceil(k log2(k + 1)) is the least m with 2^m >= (k + 1)^k, here in logarithms of long double; the
// sizes are small.
int64_t nlogn(int64_t k) {
  int64_t m = 0;
  while (static_cast<long double>(m) * std::log(2.0L) <
         static_cast<long double>(k) * std::log(k + 1.0L) - 1e-12L)
    ++m;
  return m + 1;
}

// [0, i) is cut into intervals of the powers of two in i, the largest first.
bool ends_fenwick_interval(int64_t i, int64_t j) {
  int64_t begin = 0;
  for (int bit = 40; bit >= 0; --bit) {
    if ((i >> bit & 1) == 0) continue;
    begin += int64_t{1} << bit;
    if (j == begin - 1) return true;
  }
  return false;
}

struct Case {
  std::string spec;
  Reads reads;
};

std::vector<Case> cases() {
  const auto square = [](int64_t k) { return k * k + 1; };
  return {
      {"dense", [](int64_t, int64_t) { return true; }},
      {"window(1)", [](int64_t i, int64_t j) { return i - j <= 1; }},
      {"window(7)", [](int64_t i, int64_t j) { return i - j <= 7; }},
      {"window(9223372036854775807)", [](int64_t, int64_t) { return true; }},
      {"2^k", at_distances([](int64_t k) { return int64_t{1} << k; })},
      {"k^2+1", at_distances(square)},
      {"k*(k+1)/2+1", at_distances([](int64_t k) { return k * (k + 1) / 2 + 1; })},
      {"3*k+2", at_distances([](int64_t k) { return 3 * k + 2; })},
      {"k < 3 ? k + 1 : 1e1 * k", at_distances([](int64_t k) { return k < 3 ? k + 1 : 10 * k; })},
      {"floor(k*k/2)+k+1", at_distances([](int64_t k) { return k * k / 2 + k + 1; })},
      {"max(k,3)+k", at_distances([](int64_t k) { return std::max<int64_t>(k, 3) + k; })},
      {"offsets(1,2,5,10)",
       [](int64_t i, int64_t j) {
         return std::set<int64_t>{1, 2, 5, 10}.contains(i - j);
       }},
      {"offsets(3)", [](int64_t i, int64_t j) { return i - j == 3; }},
      {"fib", at_distances(fibonacci)},
      {"nlogn", at_distances(nlogn)},
      {"strided(1)", [](int64_t, int64_t) { return true; }},
      {"strided(7)", [](int64_t i, int64_t j) { return (i - j) % 7 == 0; }},
      {"global(1)", [](int64_t, int64_t j) { return j < 1; }},
      {"global(5)", [](int64_t, int64_t j) { return j < 5; }},
      {"blocks(1)", [](int64_t, int64_t) { return false; }},
      {"blocks(8)", [](int64_t i, int64_t j) { return i / 8 == j / 8; }},
      {"fenwick", ends_fenwick_interval},
      {"global(2)|window(3)|strided(10)",
       [](int64_t i, int64_t j) { return j < 2 || i - j <= 3 || (i - j) % 10 == 0; }},
      {"2^k|k^2+1",
       [square](int64_t i, int64_t j) {
         return at_distances(square)(i, j) ||
                at_distances([](int64_t k) { return int64_t{1} << k; })(i, j);
       }},
      {"window(2)|window(2)", [](int64_t i, int64_t j) { return i - j <= 2; }},
      {"window(2)|fib|window(5)|blocks(7)|strided(4)|global(1)|strided(9)|window(3)",
       [](int64_t i, int64_t j) {
         return i - j <= 5 || i / 7 == j / 7 || (i - j) % 4 == 0 || (i - j) % 9 == 0 || j < 1 ||
                at_distances(fibonacci)(i, j);
       }},
  };
}

TEST(Pattern, EveryKindEqualsItsDefinition) {
  for (const auto& [spec, reads] : cases()) {
    for (const int64_t n : {0, 1, 2, 3, 63, 64, 65, 100, 200}) {
      const Pattern pattern(spec, n);
      const Csr csr = to_csr(pattern);
      ASSERT_EQ(csr.rows(), n) << spec;
      for (int64_t i = 0; i < n; ++i) {
        std::vector<int32_t> expected;
        for (int32_t j = 0; j < i; ++j) {
          if (reads(i, j)) expected.push_back(j);
        }
        ASSERT_EQ(row(pattern, i), expected) << spec << " n " << n << " row " << i;
        ASSERT_EQ(std::vector<int32_t>(csr.cols.begin() + csr.row_ptr[i],
                                       csr.cols.begin() + csr.row_ptr[i + 1]),
                  expected)
            << spec << " n " << n << " row " << i;
      }
    }
  }
}

TEST(Pattern, SpecLosesWhiteSpaceOnly) {
  const Pattern pattern(" 2 ^ k |\twindow( 3 )\n", 10);
  EXPECT_EQ(pattern.spec(), "2^k|window(3)");
  EXPECT_EQ(pattern.size(), 10);
}

TEST(Pattern, OnOtherTokensItIsTheSame) {
  for (const char* spec : {"2^k", "cached(k^2+1)", "fib|window(3)", "random(4,1)", "dense"}) {
    const Pattern pattern(spec, 100);
    for (const int64_t n : {0, 1, 37, 100, 500}) {
      const Pattern other = pattern.on(n), expected(spec, n);
      EXPECT_EQ(other.size(), n);
      EXPECT_EQ(other.offsets(), expected.offsets()) << spec << ", " << n;
      EXPECT_EQ(to_csr(other).row_ptr, to_csr(expected).row_ptr) << spec << ", " << n;
      EXPECT_EQ(to_csr(other).cols, to_csr(expected).cols) << spec << ", " << n;
      EXPECT_THROW(row(other, n), Error);
    }
  }
  EXPECT_THROW(Pattern("2^k", 5).on(-1), Error);
  EXPECT_THROW(Pattern("2^k", 5).on(kLargest + 1), Error);
}

TEST(Pattern, OffsetsAreThoseBelowN) {
  using Values = std::vector<int64_t>;
  EXPECT_EQ(Pattern("2^k", 64).offsets(), (Values{1, 2, 4, 8, 16, 32}));
  EXPECT_EQ(Pattern("2^k", 65).offsets(), (Values{1, 2, 4, 8, 16, 32, 64}));
  EXPECT_EQ(Pattern("2^k", 1).offsets(), Values{});
  EXPECT_EQ(Pattern("offsets(1,2,5,10)", 6).offsets(), (Values{1, 2, 5}));
  EXPECT_EQ(Pattern("2^k|k^2+1|offsets(3)", 12).offsets(), (Values{1, 2, 3, 4, 5, 8, 10}));
  for (const char* spec : {"dense", "window(2)", "cached(2^k)", "2^k|dense"}) {
    EXPECT_EQ(Pattern(spec, 64).offsets(), Values{}) << spec;
  }
}

TEST(Pattern, InheritsIsTrueOnlyWhereItHolds) {
  const std::vector<std::string> inheriting = {"dense",
                                               "window(1)",
                                               "window(9)",
                                               "global(4)",
                                               "blocks(8)",
                                               "fenwick",
                                               "cached(2^k)",
                                               "cached(k^2+1)",
                                               "cached(fib)",
                                               "cached(offsets(1,7,8,9,40))",
                                               "global(3)|window(5)|fenwick|cached(nlogn)"};
  for (const std::string& spec : inheriting) {
    EXPECT_TRUE(Pattern(spec, 300).inherits()) << spec;
    EXPECT_EQ(Pattern(spec, 300).is_dense(), spec == "dense") << spec;
  }
  for (const char* spec : {"2^k", "k^2+1", "strided(3)", "random(3,1)", "offsets(2)",
                           "window(3)|strided(5)", "offsets(1,2,300)", "k+1"}) {
    EXPECT_FALSE(Pattern(spec, 300).inherits()) << spec;  // 300 tokens do not show the last offset
    EXPECT_FALSE(Pattern(spec, 1).inherits()) << spec;
  }
  std::vector<std::string> specs = inheriting;
  for (const Case& each : cases()) specs.push_back(each.spec);
  int checked = 0;
  for (const std::string& spec : specs) {
    const Pattern pattern(spec, 300);
    if (!pattern.inherits()) continue;
    ++checked;
    for (int64_t i = 0; i + 1 < 300; ++i) {
      std::vector<int32_t> before = row(pattern, i);
      before.push_back(static_cast<int32_t>(i));
      const std::vector<int32_t> after = row(pattern, i + 1);
      ASSERT_TRUE(std::includes(before.begin(), before.end(), after.begin(), after.end()))
          << spec << " row " << i + 1;
    }
  }
  EXPECT_GE(checked, static_cast<int>(inheriting.size()) + 8);
}

TEST(Pattern, RandomDrawsDistinctEarlierTokens) {
  for (const int64_t reads : {1, 5, 64}) {
    const Pattern pattern("random(" + std::to_string(reads) + ",7)", 300),
        again(pattern.spec(), 300);
    for (int64_t i = 0; i < 300; ++i) {
      const std::vector<int32_t> cols = row(pattern, i);
      ASSERT_EQ(static_cast<int64_t>(cols.size()), std::min(reads, i));
      ASSERT_TRUE(std::is_sorted(cols.begin(), cols.end()));
      ASSERT_EQ(std::set<int32_t>(cols.begin(), cols.end()).size(), cols.size());
      ASSERT_TRUE(i == 0 || (cols.front() >= 0 && cols.back() < i));
      ASSERT_EQ(cols, row(again, i));
    }
  }
  EXPECT_NE(to_csr(Pattern("random(5,7)", 300)).cols, to_csr(Pattern("random(5,8)", 300)).cols);
  // A row does not depend on the length, and is the same on every machine.
  EXPECT_EQ(row(Pattern("random(5,7)", 300), 299), row(Pattern("random(5,7)", 1000), 299));
  EXPECT_EQ(row(Pattern("random(4,0)", 1000), 999), (std::vector<int32_t>{249, 711, 747, 824}));
}

TEST(Pattern, RandomIsUniform) {
  // Token 20 draws 5 of 20, once for each of 20,000 seeds: each of the 20 is drawn 5,000 times,
  // standard deviation sqrt(20000 * 1/4 * 3/4) = 61; and each pair 20000 * (5*4)/(20*19) = 1053
  // times, standard deviation 32.
  std::vector<int> single(20), pair(400);
  for (int seed = 0; seed < 20000; ++seed) {
    const std::vector<int32_t> cols =
        row(Pattern("random(5," + std::to_string(seed) + ")", 21), 20);
    for (const int32_t a : cols) {
      ++single[a];
      for (const int32_t b : cols) ++pair[a * 20 + b];
    }
  }
  for (int a = 0; a < 20; ++a) {
    EXPECT_NEAR(single[a], 5000, 5 * 61) << a;
    for (int b = 0; b < a; ++b) EXPECT_NEAR(pair[a * 20 + b], 1053, 5 * 32) << a << " " << b;
  }
}

TEST(Pattern, LastTokenOfTheLongestSequence) {
  const int64_t last = kLargest - 1;
  const std::vector<int32_t> powers = row(Pattern("2^k", kLargest), last);
  ASSERT_EQ(powers.size(), 31u);
  for (int k = 0; k < 31; ++k) EXPECT_EQ(powers[30 - k], last - (int64_t{1} << k));

  // Counted from 1, token 2^31 - 1 reads the multiple of a_k = 2^(k-1) at or above 2^31 - 1 - 2^k
  // (a_0 = 1).
  const std::vector<int32_t> cached = row(Pattern("cached(2^k)", kLargest), last);
  ASSERT_EQ(cached.size(), 31u);
  for (int k = 0; k < 31; ++k) {
    const int64_t a = k == 0 ? 1 : int64_t{1} << (k - 1), t = kLargest - (int64_t{1} << k);
    EXPECT_EQ(cached[30 - k], (t + a - 1) / a * a - 1) << k;
  }

  const std::vector<int32_t> squares = row(Pattern("k^2+1", kLargest), last);
  ASSERT_EQ(squares.size(), 46341u);  // 46340^2 + 1 < 2^31 - 1
  EXPECT_EQ(squares.front(), last - (int64_t{46340} * 46340 + 1));
  const std::vector<int32_t> cached_squares = row(Pattern("cached(k^2+1)", kLargest), last);
  EXPECT_EQ(cached_squares.back(), last - 1);
  EXPECT_GE(cached_squares.front(), last - (int64_t{46340} * 46340 + 1));
  EXPECT_TRUE(std::is_sorted(cached_squares.begin(), cached_squares.end(), std::less_equal<>()));

  const std::vector<int32_t> fib = row(Pattern("fib", kLargest), last);
  EXPECT_EQ(fib.size(), 45u);
  EXPECT_EQ(fib.front(), last - 1836311903);
  EXPECT_EQ(row(Pattern("window(3)", kLargest), last),
            (std::vector<int32_t>{2147483643, 2147483644, 2147483645}));
  EXPECT_EQ(row(Pattern("blocks(4)", kLargest), last),
            (std::vector<int32_t>{2147483644, 2147483645}));
  EXPECT_EQ(row(Pattern("strided(1000000000)", kLargest), last),
            (std::vector<int32_t>{147483646, 1147483646}));
  EXPECT_EQ(row(Pattern("fenwick", kLargest), last).size(), 30u);  // 2^31 - 2 has 30 ones
  EXPECT_EQ(row(Pattern("random(9,1)", kLargest), last).size(), 9u);
}

TEST(Pattern, PowersAtTheirOwnBoundary) {
  for (const int bit : {1, 5, 29, 30}) {
    const int64_t power = int64_t{1} << bit;
    EXPECT_EQ(Pattern("2^k", power).offsets().size(), static_cast<size_t>(bit)) << bit;
    EXPECT_EQ(Pattern("2^k", power + 1).offsets().size(), static_cast<size_t>(bit) + 1) << bit;
    // Just below the largest power, at it, and past it.
    const Pattern pattern("2^k", power + 2);
    EXPECT_EQ(row(pattern, power - 1).size(), static_cast<size_t>(bit));
    EXPECT_EQ(row(pattern, power).size(), static_cast<size_t>(bit) + 1);
    EXPECT_EQ(row(pattern, power).front(), 0);
    const Pattern fenwick("fenwick", power + 2);
    EXPECT_EQ(row(fenwick, power), std::vector<int32_t>{static_cast<int32_t>(power - 1)});
    EXPECT_EQ(row(fenwick, power - 1).size(), static_cast<size_t>(bit));
  }
  EXPECT_EQ(Pattern("3^k", 243).offsets().size(), 5u);  // 3^5 = 243
  EXPECT_EQ(Pattern("3^k", 244).offsets().size(), 6u);
}

TEST(Offsets, NlognIsExactWhereDoubleIsNot) {
  EXPECT_EQ(nlogn_offsets(40), (std::vector<int64_t>{1, 2, 5, 7, 11, 14, 18, 22, 27, 31, 36}));
  // 18981554 * log2(18981555) lies 4e-8 above 458937813, less than double resolves.
  const std::vector<int64_t> values = nlogn_offsets(458937900);
  EXPECT_EQ(values[18981554], 458937815);
  // Whole logarithms: k + 1 = 2^20 gives 20 (2^20 - 1) + 1.
  EXPECT_EQ(values[(1 << 20) - 1], int64_t{20} * ((1 << 20) - 1) + 1);
  EXPECT_EQ(values[(1 << 24) - 1], int64_t{24} * ((1 << 24) - 1) + 1);
}

TEST(Pattern, RowsTogetherAreTheRowsOneByOne) {
  for (const char* spec : {"dense", "window(5)", "2^k", "k^2+1", "offsets(7,11)", "cached(2^k)",
                           "cached(k^2+1)", "cached(fib)", "strided(3)", "global(4)", "blocks(8)",
                           "random(3,1)", "fenwick", "cached(k^3+1)|global(2)", "2^k|window(3)"}) {
    const Pattern pattern(spec, 500);
    for (const auto& [begin, end] : {std::pair{0, 0},
                                     {0, 1},
                                     {0, 500},
                                     {1, 33},
                                     {31, 64},
                                     {250, 290},
                                     {499, 500},
                                     {500, 500}}) {
      Csr rows{{9, 9}, {9}};
      pattern.rows(begin, end, rows);
      ASSERT_EQ(rows.rows(), end - begin) << spec;
      for (int64_t i = begin; i < end; ++i) {
        const std::vector<int32_t> together(rows.cols.begin() + rows.row_ptr[i - begin],
                                            rows.cols.begin() + rows.row_ptr[i - begin + 1]);
        ASSERT_EQ(together, row(pattern, i))
            << spec << " row " << i << " of " << begin << ".." << end;
      }
      ASSERT_EQ(rows.row_ptr.back(), static_cast<int64_t>(rows.cols.size())) << spec;
    }
  }
  const Pattern largest("cached(k^2+1)", kLargest);
  Csr rows;
  largest.rows(kLargest - 2, kLargest, rows);
  EXPECT_EQ(std::vector<int32_t>(rows.cols.begin() + rows.row_ptr[1], rows.cols.end()),
            row(largest, kLargest - 1));
}

TEST(Pattern, RefusesLengthsAndRowsOutOfRange) {
  EXPECT_THROW(Pattern("dense", -1), Error);
  EXPECT_THROW(Pattern("dense", kLargest + 1), Error);
  const Pattern pattern("dense", 3);
  std::vector<int32_t> cols;
  EXPECT_THROW(pattern.row(3, cols), Error);
  EXPECT_THROW(pattern.row(-1, cols), Error);
  EXPECT_THROW(Pattern("dense", 0).row(0, cols), Error);
  Csr rows;
  EXPECT_THROW(pattern.rows(-1, 2, rows), Error);
  EXPECT_THROW(pattern.rows(2, 1, rows), Error);
  EXPECT_THROW(pattern.rows(0, 4, rows), Error);
}

// Of many terms, each row costs what it reads and not that times the number of terms.
TEST(Pattern, AUnionOfThousands) {
  constexpr int64_t kTerms = 1500;
  for (const std::string kind : {"window", "global", "blocks", "strided"}) {
    std::string spec;
    for (int64_t t = 1; t <= kTerms; ++t) {
      spec += (t > 1 ? "|" : "") + kind + "(" + std::to_string(t) + ")";
    }
    const Csr csr = to_csr(Pattern(spec, kTerms));  // each of them is dense: strided(1), window(n)
    EXPECT_EQ(csr.cols.size(), static_cast<size_t>(kTerms * (kTerms - 1) / 2)) << kind;
    EXPECT_EQ(csr.cols[static_cast<size_t>(csr.row_ptr[1400]) + 1234], 1234) << kind;
  }
}

}  // namespace
}  // namespace hopmix
