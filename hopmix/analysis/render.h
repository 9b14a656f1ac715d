// Pictures of a pattern: for the terminal, gnuplot and Graphviz.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hopmix/pattern/pattern.h"

namespace hopmix {

/// The matrix in `side` by `side` cells of `scale` by `scale` tokens; the last row and column may
/// cover fewer.
struct Grid {
  int64_t side = 0;
  int64_t scale = 1;
  std::vector<int64_t> reads;  // [side * side] reads in each cell, row-major: row reads column
  int64_t at(int64_t row, int64_t col) const { return reads[row * side + col]; }
};

/// The finest grid with at most `max_side` cells per side. O(reads). `max_side` must be at least 1.
Grid coarsen(const Pattern& pattern, int64_t max_side);

/// UTF-8 text with one line per row: token i downwards, what it reads to the right. Up to 32
/// tokens, a cell is a symbol (■ read, · not read, ○ the token itself); up to 64, a half block;
/// beyond that, a braille dot. Past 128 tokens a dot stands for a square of tokens (the last line
/// gives its size) and is set if any of them is read.
std::string terminal_matrix(const Pattern& pattern);

/// A script for plot() (gnuplot.h) of the matrix. Past 256 tokens the shade is the share of pairs
/// read.
std::string matrix_script(const Pattern& pattern);

/// A script for plot(): the tokens kept after each token (cost.h), and the reads of each token.
std::string cache_script(const Pattern& pattern);

/// A script for plot(): d(i, j) (hops.h) as a heat map; past 128 tokens, of one token in s.
/// O(reads) per row drawn.
std::string hops_script(const Pattern& pattern);

/// The communication graph in Graphviz's language, with an edge from each token to each token it
/// reads.
std::string graphviz(const Pattern& pattern);

}  // namespace hopmix
