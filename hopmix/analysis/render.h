// Pictures of a pattern: in the terminal, for gnuplot, for Graphviz.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hopmix/pattern/pattern.h"

namespace hopmix {

/// The matrix in `side` by `side` cells of `scale` by `scale` tokens each; the last row and column
/// may hold fewer.
struct Grid {
  int64_t side = 0;
  int64_t scale = 1;
  std::vector<int64_t> reads;  // [side * side] reads in each cell, row-major: row reads column
  int64_t at(int64_t row, int64_t col) const { return reads[row * side + col]; }
};

/// The finest grid of at most `max_side` cells a side. O(reads). `max_side` is at least 1.
Grid coarsen(const Pattern& pattern, int64_t max_side);

/// UTF-8 text, one line a row, token i downwards and what it reads to the right. Up to 32 tokens a
/// cell is a sign (■ read, · not read, ○ itself); up to 64 a half block; beyond that a braille dot,
/// which stands for a square of tokens past 128 (the last line then says how many) and is set when
/// any of them is read.
std::string terminal_matrix(const Pattern& pattern);

/// A script for plot() (gnuplot.h): the matrix, with the share of pairs read as the shade past 256
/// tokens.
std::string matrix_script(const Pattern& pattern);

/// A script for plot(): the tokens kept after each token (cost.h), and the reads of each.
std::string cache_script(const Pattern& pattern);

/// A script for plot(): d(i, j) (hops.h) as a heat map, of one token in s past 128 tokens.
/// O(reads) for each row drawn.
std::string hops_script(const Pattern& pattern);

/// The communication graph in Graphviz's language: an edge from each token to each that it reads.
std::string graphviz(const Pattern& pattern);

}  // namespace hopmix
