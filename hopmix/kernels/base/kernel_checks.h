// Checks for every kernel on a pattern, used by the kernels' tests. A problem has run(), results()
// and compare_with_reference(); make(case, on_the_fly) returns one in a unique_ptr.
#pragma once

#include "hopmix/kernels/base/test_data.h"
#include "hopmix/kernels/rows/slots.h"

namespace hopmix::kernels::testing {

template <typename Make>
void expect_reference(const Make& make, const Case& c, bool on_the_fly = false) {
  SCOPED_TRACE(::testing::PrintToString(c));
  const auto problem = make(c, on_the_fly);
  problem->run();
  problem->compare_with_reference();
}

/// Every instruction set, at widths around its vector size.
template <typename Make>
void expect_reference_for_each_target(const Make& make) {
  for_each_target([&] {
    for (const int64_t width : {1, 3, 15, 16, 17, 20, 31, 32, 33, 63, 64, 65, 100, 128}) {
      expect_reference(make, {"k^2+1", 70, width, width + 1, 1, 2, 1});
    }
  });
}

/// Slots that are reused by one token after another.
template <typename Make>
void expect_reference_with_slots_used_again(const Make& make) {
  for (const Case& c : compact_cases()) {
    const Pattern pattern(c.pattern, c.sequences().longest());
    ASSERT_TRUE(Slots(Rows(pattern), pattern.size(), 32).compact());
    expect_reference(make, c, /*on_the_fly=*/true);
  }
}

template <typename Make>
void expect_same_bits_with_rows_on_the_fly(const Make& make) {
  for (const Case& c : {Case{"cached(k^2+1)", 100, 20, 12, 2, 4, 2},
                        Case{"cached(k^2+1)", 700, 5, 20, 1, 2, 1}, Case{"2^k", 300, 3, 3}}) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const auto listed = make(c, false), made = make(c, true);
    listed->run();
    made->run();
    EXPECT_TRUE(same_bits(listed->results(), made->results()));
  }
}

/// Several heads, one thread each; one head shared by a team, whose slots the second pattern
/// reuses.
template <typename Make>
void expect_same_bits_for_any_threads(const Make& make) {
  for (const Case& c : {Case{"k^2+1", 100, 20, 12, 2, 6, 2}, Case{"cached(k^2+1)", 1500, 40, 100},
                        Case{"cached(2^k)", 2600, 3, 65}}) {
    for (const bool on_the_fly : {false, true}) {
      SCOPED_TRACE(::testing::PrintToString(c));
      expect_same_for_any_threads([&] {
        const auto problem = make(c, on_the_fly);
        problem->run();
        return problem->results();
      });
    }
  }
}

/// Inputs laid out like a matrix are read in place (SlotRows), others are copied; no bit may depend
/// on this, for any number of threads. run(problem, behind) computes with the inputs that others
/// read placed `behind` entries after a cache line, and returns the results.
template <typename Make, typename Run>
void expect_same_bits_in_place(const Make& make, const Run& run) {
  for (const Case& c : {Case{"k^2+1", 100, 64, 64}, Case{"k^2+1", 3500, 64, 64},
                        Case{"cached(k^2+1)", 700, 64, 64}, Case{"k^2+1", 100, 16, 32}}) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const auto problem = make(c, /*on_the_fly=*/c.time == 700);
    const auto copied = run(*problem, 1);
    expect_same_for_any_threads([&] { return run(*problem, 0); });
    EXPECT_TRUE(same_bits(run(*problem, 0), copied));
  }
}

/// Puts NaN at `token` of one input at a time: exactly the outputs that depend on it must be NaN.
/// Each of `inputs` names a member of the problem, the width of its rows, and where the NaN enters:
/// in the token's own row, in the rows that read the token, or both. Rows that read a NaN row are
/// NaN if `recurrent`.
template <typename Problem, typename T>
struct NanInput {
  std::vector<T> Problem::*input;
  int64_t width;
  bool own, readers;
};

template <typename Problem, typename T, typename Make>
void expect_nan_shows_where_it_should(const Make& make, const Case& c, int64_t token,
                                      bool recurrent,
                                      const std::vector<NanInput<Problem, T>>& inputs) {
  const auto plain = make(c, false);
  plain->run();
  for (size_t n = 0; n < inputs.size(); ++n) {
    const auto changed = make(c, false);
    const auto at = ((*changed).*inputs[n].input).begin() + token * inputs[n].width;
    std::fill(at, at + inputs[n].width, static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
    changed->run();
    std::vector<bool> shows(c.time);
    for (int64_t i = 0; i < c.time; ++i) {
      shows[i] = i == token && inputs[n].own;
      for (int64_t r = plain->csr.row_ptr[i]; r < plain->csr.row_ptr[i + 1]; ++r) {
        const int32_t j = plain->csr.cols[r];
        if ((j == token && inputs[n].readers) || (recurrent && shows[j])) shows[i] = true;
      }
      for (int64_t e = i * c.value_width; e < (i + 1) * c.value_width; ++e) {
        const double before = widened(plain->y)[e], after = widened(changed->y)[e];
        ASSERT_TRUE(shows[i] ? std::isnan(after) : after == before)
            << "input " << n << " row " << i << ": " << before << " became " << after;
      }
    }
  }
}

}  // namespace hopmix::kernels::testing
