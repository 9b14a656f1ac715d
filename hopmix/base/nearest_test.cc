#include "hopmix/base/nearest.h"

#include <gtest/gtest.h>

namespace hopmix {
namespace {

TEST(EditDistance, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("wdith", "width"), 1);  // neighbours swapped
}

TEST(Nearest, FindsATypoButNotAnyWord) {
  const std::vector<std::string> known = {"window", "dense", "strided"};
  EXPECT_EQ(nearest_name("windw", known), "window");
  EXPECT_EQ(nearest_name("xyzxyz", known), "");
  EXPECT_EQ(suggestion("dens", known), "; did you mean 'dense'?");
  EXPECT_EQ(suggestion("qqqqqqq", known), "; known: window, dense, strided");
  EXPECT_EQ(nearest_name("a", {}), "");
}

}  // namespace
}  // namespace hopmix
