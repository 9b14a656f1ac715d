#include "hopmix/base/utf8.h"

#include <gtest/gtest.h>

namespace hopmix {
namespace {

TEST(Utf8, TheFirstBadCharacter) {
  EXPECT_EQ(first_bad_utf8(""), std::nullopt);
  EXPECT_EQ(first_bad_utf8("café 日本"), std::nullopt);
  EXPECT_EQ(first_bad_utf8("\xff"), 0u);
  EXPECT_EQ(first_bad_utf8("caf\xe9"), 3u);
  EXPECT_EQ(first_bad_utf8("ab\xe6\x97"), 2u);
  EXPECT_EQ(first_bad_utf8("é\xe6\x97x"), 2u);
}

TEST(Utf8, AMessageQuotesWhatIsValid) {
  EXPECT_EQ(valid_utf8("café 日本"), "café 日本");
  EXPECT_EQ(valid_utf8("a\xff\xe6\x97z\xc3"), "a\uFFFD\uFFFDz\uFFFD");
}

}  // namespace
}  // namespace hopmix
