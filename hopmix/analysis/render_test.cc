#include "hopmix/analysis/render.h"

#include <gtest/gtest.h>

#include <numeric>
#include <sstream>

namespace hopmix {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The code points of UTF-8 text.
std::u32string decode(const std::string& text) {
  std::u32string points;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xc0) == 0x80) {
      points.back() = points.back() << 6 | (byte & 0x3f);
    } else {
      points += byte < 0x80 ? byte : byte < 0xe0 ? byte & 0x1f : byte & 0x0f;
    }
  }
  return points;
}

bool reads(const Pattern& pattern, int64_t i, int64_t j) {
  std::vector<int32_t> cols;
  if (i >= pattern.size()) return false;
  pattern.row(i, cols);
  return std::binary_search(cols.begin(), cols.end(), static_cast<int32_t>(j));
}

TEST(Render, FewTokensAreSigns) {
  EXPECT_EQ(terminal_matrix(Pattern("2^k", 6)), "○\n■ ○\n■ ■ ○\n· ■ ■ ○\n■ · ■ ■ ○\n· ■ · ■ ■ ○\n");
  EXPECT_EQ(terminal_matrix(Pattern("2^k", 0)), "");
  EXPECT_EQ(split(terminal_matrix(Pattern("2^k", 32))).size(), 32u);
}

TEST(Render, HalfBlocksDecodeToTheMatrix) {
  for (const char* spec : {"dense", "2^k", "cached(k^2+1)", "blocks(1)", "random(3,1)"}) {
    for (const int64_t n : {33, 64}) {
      const Pattern pattern(spec, n);
      const std::vector<std::string> lines = split(terminal_matrix(pattern));
      ASSERT_EQ(static_cast<int64_t>(lines.size()), (n + 1) / 2);
      for (int64_t i = 0; i < n; ++i) {
        std::u32string line = decode(lines[i / 2]);
        ASSERT_LE(static_cast<int64_t>(line.size()), n);
        line.resize(n, U' ');
        for (int64_t j = 0; j < n; ++j) {
          const bool set = line[j] == U'█' || line[j] == (i % 2 == 0 ? U'▀' : U'▄');
          ASSERT_EQ(set, reads(pattern, i, j)) << spec << " " << i << " " << j;
        }
      }
    }
  }
}

// Dot (x, y) of a braille symbol, in the numbering of the standard: 1 2 3 7 down the left, 4 5 6 8
// down the right.
bool dot(char32_t sign, int64_t x, int64_t y) {
  constexpr int kNumber[2][4] = {{1, 2, 3, 7}, {4, 5, 6, 8}};
  return (sign - 0x2800) >> (kNumber[x][y] - 1) & 1;
}

TEST(Render, BrailleDecodesToTheMatrix) {
  for (const char* spec : {"dense", "2^k", "cached(k^2+1)", "random(3,1)"}) {
    for (const int64_t n : {65, 100, 128, 129, 1000}) {
      const Pattern pattern(spec, n);
      const int64_t scale = (n + 127) / 128, side = (n + scale - 1) / scale;
      std::vector<std::string> lines = split(terminal_matrix(pattern));
      if (scale > 1) {
        const std::string s = std::to_string(scale);
        EXPECT_EQ(lines.back(), "(one dot: " + s + " by " + s + " tokens)");
        lines.pop_back();
      }
      ASSERT_EQ(static_cast<int64_t>(lines.size()), (side + 3) / 4);
      std::vector<bool> expected(side * side);
      const Csr csr = to_csr(pattern);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t e = csr.row_ptr[i]; e < csr.row_ptr[i + 1]; ++e) {
          expected[i / scale * side + csr.cols[e] / scale] = true;
        }
      }
      for (int64_t i = 0; i < side; ++i) {
        std::u32string line = decode(lines[i / 4]);
        ASSERT_LE(static_cast<int64_t>(line.size()), (side + 1) / 2);
        line.resize((side + 1) / 2, U'\u2800');
        for (int64_t j = 0; j < side; ++j) {
          ASSERT_EQ(dot(line[j / 2], j % 2, i % 4), expected[i * side + j])
              << spec << " " << i << " " << j;
        }
      }
    }
  }
}

TEST(Render, AGridCountsEveryReadOnce) {
  for (const int64_t n : {0, 1, 2, 63, 64, 65, 100, 1000}) {
    for (const int64_t side : {1, 3, 64, 5000}) {
      const Pattern pattern("2^k", n);
      const Grid grid = coarsen(pattern, side);
      EXPECT_LE(grid.side, side);
      EXPECT_GE(grid.side * grid.scale, n);
      EXPECT_LT((grid.side - 1) * grid.scale, std::max<int64_t>(n, 1));
      EXPECT_EQ(std::accumulate(grid.reads.begin(), grid.reads.end(), int64_t{0}),
                to_csr(pattern).row_ptr.back());
    }
  }
}

TEST(Render, GraphvizListsTokensAndReads) {
  EXPECT_EQ(graphviz(Pattern("offsets(2)", 4)),
            "// token i -> a token that it reads\ndigraph pattern {\n  label=\"offsets(2), 4 "
            "tokens\";\n  rankdir=RL;\n"
            "  node [shape=circle];\n  0;\n  1;\n  2;\n  2 -> 0;\n  3;\n  3 -> 1;\n}\n");
}

TEST(Render, ThePlotShadesByTheShareOfPairs) {
  // 512 tokens in cells of 2: with window(1), a cell on the diagonal has one pair, which is read; a
  // cell next to it has four pairs, one of which is read.
  const std::string script = matrix_script(Pattern("window(1)", 512));
  EXPECT_NE(script.find("\n0.500000 0.500000 1.000000\n"), std::string::npos);
  EXPECT_NE(script.find("\n0.500000 2.500000 0.250000\n"), std::string::npos);
  EXPECT_NE(script.find("set cblabel"), std::string::npos);
  EXPECT_NE(matrix_script(Pattern("window(1)", 256)).find("unset colorbox"), std::string::npos);
}

TEST(Render, TheHeatMapHoldsTheHops) {
  const std::string script = hops_script(Pattern("2^k", 64));
  EXPECT_NE(script.find("\n0 63 6\n"), std::string::npos);  // 63 is 111111 in binary
  EXPECT_NE(script.find("\n62 63 1\n"), std::string::npos);
  EXPECT_EQ(script.find("no path"), std::string::npos);
  EXPECT_EQ(script.find("one in"), std::string::npos);
  // A colour for each number of hops, with the number in the middle of its range.
  EXPECT_NE(script.find("(0 '#fde725', 1 '#fde725', 1 '#7ecf56', 2 '#7ecf56', "), std::string::npos)
      << script.substr(script.find("set palette"));
  EXPECT_NE(script.find(", 5 '#440154', 6 '#440154')\nset cbrange [0.5:6.5]"), std::string::npos);
  EXPECT_NE(hops_script(Pattern("dense", 8)).find("(0 '#fde725', 1 '#fde725')"), std::string::npos);
  const std::string coarse = hops_script(Pattern("blocks(8)", 1000));
  EXPECT_NE(coarse.find("one in 8 (white: no path)"), std::string::npos);
  EXPECT_EQ(coarse.find("\n0 8 "), std::string::npos);
}

TEST(Render, TheCurveHoldsTheCache) {
  // By hand: token, kept after it, read by it; nothing is kept after the last.
  const std::string script = cache_script(Pattern("window(3)", 6));
  EXPECT_NE(script.find("\n0 1 0\n1 2 1\n2 3 2\n3 3 3\n4 3 3\n5 0 3\nEOD"), std::string::npos)
      << script;
}

}  // namespace
}  // namespace hopmix
