#include "hopmix/base/content_hash.h"

#include <gtest/gtest.h>

#include <set>

namespace hopmix {
namespace {

uint64_t hash_of(std::string_view bytes, size_t piece) {
  ContentHash hash;
  for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
    hash.add(bytes.substr(0, piece));
  }
  return hash.value();
}

TEST(ContentHash, DependsOnAllBytesAndNotOnThePieces) {
  std::string text = "the king speaks softly to the queen of night";
  const uint64_t whole = hash_of(text, text.size());
  for (size_t piece = 1; piece < 20; ++piece) EXPECT_EQ(hash_of(text, piece), whole) << piece;
  std::set<uint64_t> seen = {whole};
  for (char& c : text) {
    c ^= 1;
    EXPECT_TRUE(seen.insert(hash_of(text, 7)).second);
    c ^= 1;
  }
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_TRUE(seen.insert(hash_of(std::string_view(text).substr(0, size), 5)).second) << size;
  }
  for (size_t zeros = 1; zeros < 20; ++zeros) {  // a length of its own
    EXPECT_TRUE(seen.insert(hash_of(std::string(zeros, '\0'), 3)).second) << zeros;
  }
}

TEST(ContentHash, InHexadecimal) {
  EXPECT_EQ(hex(0), "0000000000000000");
  EXPECT_EQ(hex(0xfedcba9876543210u), "fedcba9876543210");
}

}  // namespace
}  // namespace hopmix
