// The full error message of malformed specs.
#include <gtest/gtest.h>

#include "hopmix/base/error.h"
#include "hopmix/base/utf8.h"
#include "hopmix/pattern/pattern.h"

namespace hopmix {
namespace {

std::string message(const std::string& spec, int64_t n) {
  try {
    const Pattern pattern(spec, n);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

struct Bad {
  const char* spec;
  const char* says;  // after "pattern 'SPEC': "
};

const Bad kBad[] = {
    {"", "a pattern is missing at character 1"},
    {"|", "a pattern is missing at character 1"},
    {"2^k|", "a pattern is missing at character 5"},
    {"|2^k", "a pattern is missing at character 1"},
    {"2^k||fib", "a pattern is missing at character 5"},
    {"windw(3)", "unknown name 'windw' at character 1; did you mean 'window'?"},
    {"dens", "unknown name 'dens' at character 1; did you mean 'dense'?"},
    {"xyzzyxyzzy",
     "unknown name 'xyzzyxyzzy' at character 1; known: dense, window, offsets, fib, nlogn, cached, "
     "strided, global, blocks, random, fenwick, dag, an expression in k"},
    {"2^n", "unknown name 'n' at character 3; did you mean 'k'?"},
    {"K+1", "unknown name 'K' at character 1; did you mean 'k'?"},
    {"sqr(k)+1", "unknown name 'sqr' at character 1; did you mean 'sqrt'?"},
    {"2^k+fib", "'fib' at character 5 cannot be part of an expression; use | to join patterns"},
    {"fib\u00e9", "unexpected '\u00e9' at character 4; use | to join patterns"},
    {"fib+1", "unexpected '+' at character 4; use | to join patterns"},
    {"window", "unexpected end at character 7; expected window(w)"},
    {"window(", "an argument is missing at character 8"},
    {"window()", "an argument is missing at character 8"},
    {"window(3", "unexpected end at character 9; expected window(w)"},
    {"window(3))", "unexpected ')' at character 10; use | to join patterns"},
    {"window(0)", "argument at character 8: 0 must be at least 1"},
    {"window(-2)", "argument at character 8: -2 must be at least 1"},
    {"window(1.5)", "argument at character 8: 1.5 must be a whole number"},
    {"window(x)", "argument at character 8: x must be a whole number"},
    {"window(1,2)", "unexpected ',' at character 9; expected window(w)"},
    {"window(99999999999999999999)",
     "argument at character 8: 99999999999999999999 must be at most 9223372036854775807"},
    {"dense(3)", "unexpected '(' at character 6; use | to join patterns"},
    {"random(3)", "unexpected ')' at character 9; expected random(r,seed)"},
    {"random(0,1)", "argument at character 8: 0 must be at least 1"},
    {"random(3,-1)", "argument at character 10: -1 must be at least 0"},
    {"random(3,1,2)", "unexpected ',' at character 11; expected random(r,seed)"},
    {"strided(0)", "argument at character 9: 0 must be at least 1"},
    {"global(0)", "argument at character 8: 0 must be at least 1"},
    {"blocks(0)", "argument at character 8: 0 must be at least 1"},
    {"offsets", "unexpected end at character 8; expected offsets(1,2,5)"},
    {"offsets()", "an argument is missing at character 9"},
    {"offsets(0)", "argument at character 9: 0 must be at least 1"},
    {"offsets(1,2,)", "an argument is missing at character 13"},
    {"offsets(1,5,5)", "argument at character 13: 5 must exceed 5"},
    {"offsets(5,1)", "argument at character 11: 1 must exceed 5"},
    {"offsets(1,2|fib)", "unexpected '|' at character 12; expected offsets(1,2,5)"},
    {"cached", "unexpected end at character 7; expected cached(P)"},
    {"cached()", "a pattern is missing at character 8"},
    {"cached(2^k", "unexpected end at character 11; expected cached(P)"},
    {"cached(window(3))",
     "'window(3)' at character 8 must be an expression in k, offsets(...), fib or nlogn: cached "
     "needs offsets"},
    {"cached(2^k|dense)",
     "'2^k|dense' at character 8 must be an expression in k, offsets(...), fib or nlogn: cached "
     "needs offsets"},
    {"cached(cached(2^k))",
     "'cached(2^k)' at character 8 must be an expression in k, offsets(...), fib or nlogn: cached "
     "needs offsets"},
    {"cached(fib|cached(2^k))",
     "'cached(2^k)' at character 12 must be an expression in k, offsets(...), fib or nlogn: cached "
     "needs offsets"},
    {"cached(k+2)", "'k+2' at character 8 must have f(0) = 1 for cached"},
    {"cached(offsets(2,3))", "'offsets(2,3)' at character 8 must have f(0) = 1 for cached"},
    {"2^^k", "expression at character 3: unexpected operator '^'"},
    {"(k+1", "expression at character 5: missing parenthesis"},
    {"k+", "expression at character 3: unexpected end of expression"},
    {"2k", "expression at character 2: unexpected variable 'k'"},
    {"k+1)", "unexpected ')' at character 4; use | to join patterns"},
    {"k=3", "expression at character 2: '=' is not supported; == compares"},
    {"k+$", "expression at character 3: unexpected token '$'"},
    {"k?1", "expression at character 1: if-then-else operator is missing an else clause"},
    {"max(k", "expression at character 6: missing parenthesis"},
    {"(2^k|3)", "expression at character 5: unexpected token '|3)'"},
    {"k", "expression at character 1: f(0) = 0 must be at least 1"},
    {"10-k", "expression at character 1: f(1) = 9 must exceed f(0) = 10"},
    {"k/2+1", "expression at character 1: f(1) = 1.5 must be a whole number"},
    {"5", "expression at character 1: has no k; use offsets(...) for fixed offsets"},
    {"k-3", "expression at character 1: f(0) = -3 must be at least 1"},
    {"1/(3-k)", "expression at character 1: f(0) = 0.3333333333333333 must be at least 1"},
    {"sqrt(k)", "expression at character 1: f(0) = 0 must be at least 1"},
    {"ln(k)+1", "expression at character 1: f(0) = -inf must be finite"},
    {"0*k+1", "expression at character 1: f(1) = 1 must exceed f(0) = 1"},
    {"k<3?k+1:2", "expression at character 1: f(3) = 2 must exceed f(2) = 3"},
    {"dag", "unexpected end at character 4; expected dag(file)"},
    {"dag()", "a file name is missing at character 5"},
    {"dag(x", "unexpected end at character 6; expected dag(file)"},
    {"1,2", "expression at character 1: has no k; use offsets(...) for fixed offsets"},
};

TEST(Parse, BadSpecsSayWhere) {
  for (const auto& [spec, says] : kBad) {
    EXPECT_EQ(message(spec, 64), "pattern '" + std::string(spec) + "': " + says);
  }
}

// Python decodes messages strictly.
TEST(Parse, EveryErrorIsUtf8) {
  EXPECT_EQ(message("fib\xff", 64),
            "pattern 'fib\uFFFD': unexpected '\uFFFD' at character 4; use | to join patterns");
  for (const char* spec :
       {"k+\u65e5", "\u65e5", "\xe6\x97", "window(\u65e5)", "k\xe6|2", "dag(\xff)",
        "cached(\u65e5)", "2^\u65e5k", "offsets(1,\u65e5)", "random(1,\xc3"}) {
    const std::string says = message(spec, 64);
    EXPECT_NE(says, "no error") << spec;
    EXPECT_FALSE(first_bad_utf8(says)) << says;
  }
}

TEST(Parse, PositionsCountWithoutWhiteSpace) {
  EXPECT_EQ(message("window ( 0 )", 64),
            "pattern 'window(0)': argument at character 8: 0 must be at least 1");
}

TEST(Parse, EveryErrorIsOneLine) {
  for (const char* spec : {"2^k\n|\nwin\n", "\n", "dag(a\nb)"}) {
    EXPECT_EQ(message(spec, 4).find('\n'), std::string::npos) << message(spec, 4);
    EXPECT_NE(message(spec, 4), "no error");
  }
}

TEST(Parse, OnlyTheUsedRangeOfFIsChecked) {
  // f(10) is the first that does not increase; f(9) = 81 + 1 is already outside 64 tokens.
  EXPECT_EQ(message("k<10?k^2+1:5", 64), "no error");
  EXPECT_EQ(message("k<10?k^2+1:5", 82), "no error");
  EXPECT_NE(message("k<10?k^2+1:5", 83).find("f(10) = 5 must exceed f(9) = 82"), std::string::npos);
  // f(0) is checked even if no token can use it, and so is the condition of cached.
  EXPECT_NE(message("k", 0), "no error");
  EXPECT_NE(message("cached(k+2)", 0), "no error");
  EXPECT_EQ(message("cached(k+1)", 0), "no error");
  // A step from below n to beyond the range of int64.
  EXPECT_EQ(message("10^(10*k)", 64), "no error");
  EXPECT_EQ(message("10^(300*k)", 2147483647), "no error");
}

TEST(Parse, TooManyOffsetsIsAnErrorNotAnEmptyMemory) {
  EXPECT_NE(message("k+1", 2147483647).find("use dense or window(w)"), std::string::npos);
}

}  // namespace
}  // namespace hopmix
