#include "hopmix/analysis/propositions.h"

#include <gtest/gtest.h>

#include <set>

#include "hopmix/base/error.h"

namespace hopmix {
namespace {

TEST(Propositions, HoldAndSayWhatWasMeasured) {
  const std::vector<PropositionRow> rows = measure_propositions(10'000, 64);
  std::set<std::string> propositions;
  for (const PropositionRow& row : rows) {
    const std::string what = row.proposition + " " + row.pattern + " n " + std::to_string(row.n);
    propositions.insert(row.proposition.substr(0, 3));
    EXPECT_TRUE(row.holds) << what;
    const double slack = 1e-9 * row.bound;  // of linear programming
    if (row.relation == "=") {
      EXPECT_EQ(row.measured, row.bound) << what;
    } else if (row.relation == "<=") {
      EXPECT_LE(row.measured, row.bound) << what;
    } else {
      ASSERT_EQ(row.relation, ">=");
      EXPECT_GE(row.measured, row.bound - slack) << what;
    }
  }
  EXPECT_EQ(propositions, (std::set<std::string>{"4.2", "4.5", "4.7", "4.8"}));
  // By hand: 2^k has 1, 2, ..., 8192 up to 9999; 1 + sqrt(9998) rounded down is 100.
  EXPECT_EQ(rows[2].pattern, "2^k");
  EXPECT_EQ(rows[2].measured, 14);
  EXPECT_EQ(rows[5].pattern, "k^2+1");
  EXPECT_EQ(rows[5].measured, 100);
}

TEST(Propositions, TheTranslatedRoutingByHand) {
  EXPECT_EQ(translated_routing_congestion({1}, 1), 1);
  EXPECT_EQ(translated_routing_congestion({1}, 5), 5);  // all through the middle
  EXPECT_EQ(translated_routing_congestion({1, 2, 4}, 4), 1);
  // 3 = 1 + 2: 3, 4, 5 go to 2, 3, 4, then to 0, 1, 2: each of 2, 3 and 4 twice.
  EXPECT_EQ(translated_routing_congestion({1, 2, 4}, 3), 2);
  EXPECT_EQ(translated_routing_congestion({1}, 0), 0);
  EXPECT_THROW(translated_routing_congestion({2}, 3), Error);
}

}  // namespace
}  // namespace hopmix
