// cached(P): the closed form against the recursive definition.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "hopmix/pattern/pattern.h"

namespace hopmix {
namespace {

// Counted from 1: S_i = { min{ x in S_{i-1} u {i-1} : x >= i - f(k) } : f(k) < i }, S_1 empty.
std::vector<std::set<int64_t>> recursive(const std::vector<int64_t>& f, int64_t n) {
  std::vector<std::set<int64_t>> sets(n + 1);
  for (int64_t i = 2; i <= n; ++i) {
    std::set<int64_t> cache = sets[i - 1];
    cache.insert(i - 1);
    for (const int64_t offset : f) {
      if (offset < i) sets[i].insert(*cache.lower_bound(i - offset));
    }
  }
  return sets;
}

void expect_recursive(const std::string& f, int64_t n) {
  const Pattern pattern("cached(" + f + ")", n);
  const std::vector<std::set<int64_t>> sets = recursive(Pattern(f, n).offsets(), n);
  std::vector<int32_t> cols;
  for (int64_t i = 0; i < n; ++i) {
    pattern.row(i, cols);
    std::vector<int32_t> expected;
    for (const int64_t token : sets[i + 1]) expected.push_back(static_cast<int32_t>(token - 1));
    ASSERT_EQ(cols, expected) << f << " n " << n << " row " << i;
  }
}

TEST(Cached, EqualsTheRecursion) {
  for (const char* f :
       {"2^k", "k^2+1", "k^3+1", "k+1", "3^k", "2*k+1", "k*(k+1)/2+1", "k^2+k+1", "fib", "nlogn",
        "offsets(1)", "offsets(1,2,5,10)", "offsets(1,100,101,102,103)", "2^k|k^2+1"}) {
    for (const int64_t n : {0, 1, 2, 3, 64, 65, 300, 1000}) expect_recursive(f, n);
  }
}

TEST(Cached, EqualsTheRecursionForRandomF) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t widest = 1 + static_cast<int64_t>(random() % (trial % 2 == 0 ? 5 : 60));
    std::string f = "offsets(1";
    for (int64_t value = 1; value < 300;) {
      value += 1 + static_cast<int64_t>(random() % widest);
      f += "," + std::to_string(value);
    }
    expect_recursive(f + ")", 300);
  }
}

TEST(Cached, AMillionTokensAreQuick) {
  const Csr csr = to_csr(Pattern("cached(2^k)", 1'000'000));
  // As many reads as 2^k itself: the sum over k of n - 2^k.
  int64_t reads = 0;
  for (int64_t power = 1; power < 1'000'000; power *= 2) reads += 1'000'000 - power;
  EXPECT_EQ(csr.row_ptr.back(), reads);
}

}  // namespace
}  // namespace hopmix
