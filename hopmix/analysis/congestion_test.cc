#include "hopmix/analysis/congestion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "hopmix/base/error.h"

namespace hopmix {
namespace {

Congestion of(const std::string& spec, int64_t n) { return congestion(Pattern(spec, 2 * n)); }

void expect_ordered(const Congestion& c, const std::string& what) {
  ASSERT_TRUE(c.reachable) << what;
  ASSERT_TRUE(c.fractional && c.upper) << what;
  const double rounding = 1e-8 * *c.fractional;
  EXPECT_LE(c.lower, c.proven + rounding) << what;
  EXPECT_LE(c.cut, c.proven + rounding) << what;
  EXPECT_LE(c.proven, *c.fractional + rounding) << what;
  EXPECT_LE(*c.fractional, static_cast<double>(*c.upper) + rounding) << what;
  EXPECT_NEAR(*c.fractional - c.proven, c.gap * *c.fractional, rounding) << what;
  EXPECT_GE(c.lower, c.inputs > 0 ? 1 : 0) << what;
}

struct Value {
  const char* spec;
  int64_t n;
  double fractional;
};

TEST(Congestion, CheckValues) {
  for (const Value& v : {
           Value{"window(1)", 8, 8},
           Value{"window(1)", 37, 37},
           Value{"window(4)", 8, 2},
           Value{"window(4)", 16, 4},
           Value{"window(4)", 32, 8},
           Value{"2^k", 8, 1},
           Value{"2^k", 16, 1},
           Value{"2^k", 32, 1},
           Value{"k^2+1", 8, 2.2},
           Value{"k^2+1", 16, 2.1},
           Value{"k^2+1", 32, 53.0 / 26},
           Value{"cached(2^k)", 8, 7.0 / 3},
           Value{"cached(2^k)", 16, 3.75},
           Value{"cached(2^k)", 32, 6.2},
           Value{"cached(k^2+1)", 8, 8.0 / 3},
           Value{"cached(k^2+1)", 16, 16.0 / 3},
           Value{"cached(k^2+1)", 32, 7},
           Value{"dense", 50, 1},
           Value{"fenwick", 16, 16},
       }) {
    const Congestion c = of(v.spec, v.n);
    ASSERT_TRUE(c.fractional) << v.spec;
    EXPECT_NEAR(*c.fractional, v.fractional, 1e-8) << v.spec << " " << v.n;
    EXPECT_EQ(c.gap, 0) << v.spec << " " << v.n;
    expect_ordered(c, v.spec);
  }
}

TEST(Congestion, BoundsAreInOrder) {
  for (const char* spec :
       {"2^k", "k^2+1", "k^3+1", "fib", "nlogn", "offsets(1,2,5,10)", "cached(2^k)", "cached(fib)",
        "cached(k^2+1)", "window(1)", "window(3)", "window(20)", "global(1)",
        "strided(4)|window(3)", "blocks(16)|window(2)", "random(2,1)|window(1)",
        "random(5,9)|window(1)", "fenwick"}) {
    for (const int64_t n : {1, 2, 3, 20, 33, 64}) {
      const Congestion c = of(spec, n);
      if (!c.reachable) continue;  // global(1) past the first input
      expect_ordered(c, spec + std::string(" ") + std::to_string(n));
      EXPECT_EQ(c.gap, 0) << spec << " " << n;
    }
  }
}

TEST(Congestion, WeightsAgreeWithTheLinearProgram) {
  CongestionOptions options;
  options.exact_inputs = 0;
  for (const char* spec : {"2^k", "k^2+1", "cached(2^k)", "random(3,2)|window(1)"}) {
    const Pattern pattern(spec, 110);
    const double optimum = *congestion(pattern).fractional;
    for (const double gap : {0.1, 0.02, 0.01}) {
      options.gap = gap;
      const Congestion c = congestion(pattern, options);
      expect_ordered(c, spec);
      EXPECT_LE(c.gap, gap) << spec;
      EXPECT_LE(c.proven, optimum * (1 + 1e-8)) << spec;
      EXPECT_GE(*c.fractional, optimum * (1 - 1e-8)) << spec;
    }
  }
}

TEST(Congestion, AnOddLastTokenTakesNoPart) {
  for (const char* spec : {"2^k", "cached(k^2+1)", "window(3)"}) {
    for (const int64_t n : {1, 2, 13, 32}) {
      const Congestion even = congestion(Pattern(spec, 2 * n));
      const Congestion odd = congestion(Pattern(spec, 2 * n + 1));
      EXPECT_EQ(odd.inputs, n);
      EXPECT_EQ(odd.lower, even.lower) << spec << " " << n;
      EXPECT_EQ(odd.cut, even.cut) << spec << " " << n;
      EXPECT_EQ(odd.fractional, even.fractional) << spec << " " << n;
      EXPECT_EQ(odd.upper, even.upper) << spec << " " << n;
    }
  }
}

TEST(Congestion, FewTokens) {
  for (const int64_t tokens : {0, 1}) {
    const Congestion none = congestion(Pattern("2^k", tokens));
    EXPECT_TRUE(none.reachable);
    EXPECT_EQ(none.inputs, 0);
    EXPECT_EQ(none.lower, 0);
    EXPECT_EQ(none.cut, 0);
    EXPECT_EQ(none.fractional, 0.0);
    EXPECT_EQ(none.upper, 0);
  }
  const Congestion one = congestion(Pattern("window(1)", 2));
  EXPECT_EQ(one.fractional, 1.0);
  EXPECT_EQ(one.upper, 1);
  // 2 -> 0 and 3 -> 1 by single steps share tokens 1 and 2.
  const Congestion two = congestion(Pattern("window(1)", 4));
  EXPECT_EQ(two.fractional, 2.0);
  EXPECT_EQ(two.upper, 2);
  EXPECT_EQ(two.lower, 1.5);
}

TEST(Congestion, UnreachablePairsAreReported) {
  for (const int64_t tokens : {16, 63, 200}) {
    const Congestion c = congestion(Pattern("blocks(8)", tokens));
    EXPECT_FALSE(c.reachable);
    EXPECT_EQ(c.unreachable, tokens / 2);
    EXPECT_FALSE(c.fractional);
    EXPECT_FALSE(c.upper);
  }
  EXPECT_EQ(congestion(Pattern("blocks(10)", 18)).unreachable, 8);  // 9 -> 0 within a block
  EXPECT_EQ(congestion(Pattern("global(1)", 20)).unreachable, 9);   // all but 10 -> 0
  EXPECT_EQ(congestion(Pattern("offsets(2)", 10)).unreachable, 5);  // odd distance
  EXPECT_FALSE(congestion(Pattern("offsets(2)", 14)).fractional);
  EXPECT_TRUE(congestion(Pattern("offsets(2)", 12)).fractional);
}

TEST(Congestion, ManyInputs) {
  for (const char* spec : {"cached(2^k)", "cached(k^2+1)", "cached(fib)"}) {
    const Congestion c = of(spec, 500);
    expect_ordered(c, spec);
    EXPECT_LE(c.gap, 0.02) << spec;
    // The integral routing is optimal here.
    EXPECT_EQ(*c.upper, static_cast<int64_t>(std::ceil(c.proven * (1 - 1e-9)))) << spec;
  }
}

TEST(Congestion, ProgressWatchesAndStops) {
  CongestionOptions options;
  options.exact_inputs = 0;
  options.gap = 0;
  int64_t rounds = 0;
  options.progress = [&](const CongestionProgress& p) {
    EXPECT_LE(p.lower, p.upper);
    rounds += !p.integral && p.round > 0;
    return !p.integral && p.round < 4;
  };
  const Congestion c = congestion(Pattern("k^2+1", 120), options);
  EXPECT_EQ(rounds, 4);
  EXPECT_GT(c.gap, 0);
  expect_ordered(c, "stopped");

  options.progress = nullptr;
  options.max_seconds = 0;
  const Congestion timed = congestion(Pattern("k^2+1", 120), options);
  EXPECT_GT(timed.gap, 0);
  expect_ordered(timed, "out of time");

  options = {};
  options.integral = false;
  EXPECT_FALSE(congestion(Pattern("k^2+1", 120), options).upper);
}

TEST(Congestion, TheBoundsAloneAreThoseOfTheWhole) {
  CongestionOptions options;
  options.fractional = false;
  for (const char* spec : {"2^k", "cached(k^2+1)", "blocks(16)|window(2)"}) {
    const Congestion whole = congestion(Pattern(spec, 120));
    const Congestion bounds = congestion(Pattern(spec, 120), options);
    EXPECT_EQ(bounds.lower, whole.lower) << spec;
    EXPECT_EQ(bounds.cut, whole.cut) << spec;
    EXPECT_EQ(bounds.proven, std::max(whole.lower, whole.cut)) << spec;
    EXPECT_FALSE(bounds.fractional || bounds.upper) << spec;
    EXPECT_EQ(bounds.gap, 0) << spec;
  }
}

TEST(Congestion, StopsWhileDistancesAreMeasured) {
  CongestionOptions options;
  int64_t asked = 0;
  options.progress = [&](const CongestionProgress& p) {
    EXPECT_EQ(p.round, 0);
    return ++asked < 5;
  };
  const Congestion c = congestion(Pattern("k^2+1", 120), options);
  EXPECT_EQ(asked, 5);
  EXPECT_EQ(c.lower, 0);
  EXPECT_FALSE(c.fractional || c.upper);
}

TEST(Congestion, BadOptionsAreErrors) {
  const Pattern pattern("2^k", 8);
  const auto expect_error = [&](const CongestionOptions& options, const std::string& start) {
    try {
      congestion(pattern, options);
      ADD_FAILURE() << "no error: " << start;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).rfind(start, 0), 0u) << error.what();
    }
  };
  CongestionOptions options;
  options.gap = 1;
  expect_error(options, "gap is 1.000000");
  options.gap = std::nan("");
  expect_error(options, "gap is nan");
  options = {};
  options.max_rounds = -1;
  expect_error(options, "max_rounds is -1");
  options = {};
  options.exact_inputs = -5;
  expect_error(options, "exact_inputs is -5");
  options = {};
  options.integral_rounds = -1;
  expect_error(options, "integral_rounds is -1");
  options = {};
  options.max_seconds = std::nan("");
  expect_error(options, "max_seconds is nan");
}

TEST(Congestion, SixtyFourInputsInSeconds) {
  for (const char* spec : {"2^k", "k^2+1", "cached(2^k)", "cached(k^2+1)", "fib", "window(4)",
                           "dense", "random(4,1)|window(1)"}) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(of(spec, 64).gap, 0) << spec;
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    EXPECT_LT(taken.count(), 30) << spec;
  }
}

}  // namespace
}  // namespace hopmix
