#include "hopmix/nn/heads.h"

#include <gtest/gtest.h>

namespace hopmix::nn {
namespace {

TEST(Heads, BadSizesNameTheKey) {
  const auto message = [](HeadsConfig config) {
    try {
      check_heads(config);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message({.width = 64, .heads = 4, .rope = true}), "");
  EXPECT_EQ(message({.width = 64, .heads = 5}), "heads = 5: must divide the width, 64");
  EXPECT_EQ(message({.width = 64, .heads = 0}), "heads = 0: must divide the width, 64");
  EXPECT_EQ(message({.width = 0}), "width = 0: must be at least 1");
  EXPECT_EQ(message({.width = 12, .heads = 4, .rope = true}),
            "rope = true: needs an even head width, not 3 (width / heads)");
}

}  // namespace
}  // namespace hopmix::nn
