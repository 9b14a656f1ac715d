#include "hopmix/analysis/render.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "hopmix/analysis/cost.h"
#include "hopmix/analysis/gnuplot.h"
#include "hopmix/analysis/sampled_hops.h"

namespace hopmix {
namespace {

constexpr int64_t kSigns = 32, kHalfBlocks = 64,
                  kDots = 128;      // the most tokens per side drawn with each
constexpr int64_t kPlotted = 256;   // cells per side of a matrix
constexpr int64_t kSearched = 128;  // cells per side of a heat map
constexpr int64_t kCurvePoints = 2000;
constexpr int32_t kSteps = 12;  // number of hop counts with their own colour
constexpr size_t kTitle = 60;

std::string text(int64_t number) { return std::to_string(number); }

// Lines of `width` cells, each the UTF-8 text of cell(row, col), without trailing blank cells.
template <class Cell>
std::string lines(int64_t height, int64_t width, const std::string& blank, Cell cell) {
  std::string all;
  for (int64_t row = 0; row < height; ++row) {
    std::string line;
    size_t end = 0;
    for (int64_t col = 0; col < width; ++col) {
      const std::string sign = cell(row, col);
      line += sign;
      if (sign != blank) end = line.size();
    }
    all += line.substr(0, end) + "\n";
  }
  return all;
}

std::string signs(const Grid& grid) {
  return lines(grid.side, grid.side, "", [&](int64_t i, int64_t j) -> std::string {
    if (j > i) return "";
    const std::string space = j > 0 ? " " : "";
    return space + (i == j ? "○" : grid.at(i, j) > 0 ? "■" : "·");
  });
}

std::string half_blocks(const Grid& grid) {
  const auto set = [&](int64_t i, int64_t j) { return i < grid.side && grid.at(i, j) > 0; };
  return lines((grid.side + 1) / 2, grid.side, " ", [&](int64_t row, int64_t j) -> std::string {
    const bool upper = set(2 * row, j), lower = set(2 * row + 1, j);
    return upper && lower ? "█" : upper ? "▀" : lower ? "▄" : " ";
  });
}

std::string braille(const Grid& grid) {
  // Unicode 2800 + bits, 2 dots wide and 4 high.
  constexpr int kBit[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
  return lines((grid.side + 3) / 4, (grid.side + 1) / 2, "\u2800", [&](int64_t row, int64_t col) {
    int bits = 0;
    for (int64_t y = 0; y < 4; ++y) {
      for (int64_t x = 0; x < 2; ++x) {
        const int64_t i = 4 * row + y, j = 2 * col + x;
        if (i < grid.side && j < grid.side && grid.at(i, j) > 0) bits |= kBit[y][x];
      }
    }
    return std::string{'\xe2', static_cast<char>(0xa0 | bits >> 6),
                       static_cast<char>(0x80 | (bits & 0x3f))};
  });
}

// Pairs j < i in the cell (row, col) of a grid over n tokens.
int64_t pairs_in_cell(const Grid& grid, int64_t n, int64_t row, int64_t col) {
  const int64_t height = std::min(grid.scale, n - row * grid.scale);
  return row == col ? height * (height - 1) / 2 : height * grid.scale;
}

std::string title(const Pattern& pattern) {
  std::string spec = pattern.spec();
  if (spec.size() > kTitle) spec = spec.substr(0, kTitle) + "...";
  return spec + ", " + text(pattern.size()) + " tokens";
}

// The axes of a matrix over n tokens, row 0 at the top: grey where reads are impossible, white
// elsewhere.
std::string triangle_axes(int64_t n, const std::string& x_label) {
  const std::string end = text(std::max<int64_t>(1, n)) + "-0.5";
  return "set xrange [-0.5:" + end + "]\nset yrange [" + end +
         ":-0.5]\nset size ratio -1\nset tics out nomirror\nset xlabel " + gnuplot_string(x_label) +
         "\nset ylabel 'reading token, i'\n"
         "set object 1 rectangle from graph 0,0 to graph 1,1 behind fillcolor rgb '#e6e6e6' "
         "fillstyle solid noborder\n"
         "set object 2 polygon from -0.5,-0.5 to -0.5," +
         end + " to " + end + "," + end +
         " to -0.5,-0.5 behind fillcolor rgb '#ffffff' fillstyle solid noborder\n";
}

// Viridis is perceptually uniform and readable without colour. Reversed, so that far is dark.
constexpr int kViridis[][3] = {{0xfd, 0xe7, 0x25},
                               {0x5e, 0xc9, 0x62},
                               {0x21, 0x91, 0x8c},
                               {0x3b, 0x52, 0x8b},
                               {0x44, 0x01, 0x54}};

// `share` of the way through it, as #rrggbb.
std::string viridis(double share) {
  constexpr int kLast = std::size(kViridis) - 1;
  const int stop = std::min(static_cast<int>(share * kLast), kLast - 1);
  const double beyond = share * kLast - stop;
  int color[3];
  for (int part = 0; part < 3; ++part) {
    color[part] = static_cast<int>(
        std::lround(std::lerp(kViridis[stop][part], kViridis[stop + 1][part], beyond)));
  }
  char code[8];
  std::snprintf(code, sizeof code, "#%02x%02x%02x", color[0], color[1], color[2]);
  return code;
}

// The colours of 1 .. `largest` hops, in steps if there are few. (gnuplot's own maxcolors puts the
// steps in the wrong place for 2 or 3 of them.)
std::string hops_palette(int32_t largest) {
  const bool few = largest <= kSteps;
  const int32_t colors = few ? largest : static_cast<int32_t>(std::size(kViridis));
  std::string stops;
  for (int32_t c = 0; c < colors; ++c) {
    const std::string color = " '" + viridis(colors > 1 ? c / (colors - 1.0) : 0) + "'";
    stops += (c > 0 ? ", " : "") + text(c) + color;
    if (few) stops += ", " + text(c + 1) + color;
  }
  const std::string end = text(largest);
  return "set palette defined (" + stops + ")\n" +
         (few ? "set cbrange [0.5:" + end + ".5]\nset cbtics 1\n"
              : "set cbrange [1:" + end + "]\n");
}

// $cells (x, y, shade) as squares.
std::string plot_cells(double half) {
  const std::string size = "(" + std::to_string(half) + ")";
  return "set style fill solid noborder\nplot $cells using 1:2:" + size + ":" + size +
         ":3 with boxxyerror linecolor palette notitle\n";
}

}  // namespace

Grid coarsen(const Pattern& pattern, int64_t max_side) {
  const int64_t n = pattern.size();
  Grid grid;
  grid.scale = std::max<int64_t>(1, (n + max_side - 1) / max_side);
  grid.side = (n + grid.scale - 1) / grid.scale;
  grid.reads.assign(grid.side * grid.side, 0);
  std::vector<int32_t> cols;
  for (int64_t i = 0; i < n; ++i) {
    pattern.row(i, cols);
    for (const int32_t j : cols) ++grid.reads[i / grid.scale * grid.side + j / grid.scale];
  }
  return grid;
}

std::string terminal_matrix(const Pattern& pattern) {
  const Grid grid = coarsen(pattern, kDots);
  if (pattern.size() <= kSigns) return signs(grid);
  if (pattern.size() <= kHalfBlocks) return half_blocks(grid);
  const std::string scale = text(grid.scale);
  return braille(grid) +
         (grid.scale > 1 ? "(one dot: " + scale + " by " + scale + " tokens)\n" : "");
}

std::string matrix_script(const Pattern& pattern) {
  const int64_t n = pattern.size();
  const Grid grid = coarsen(pattern, kPlotted);
  const double half = static_cast<double>(grid.scale) / 2;
  // x, y and shade of each cell with reads. A block must not be empty, so it starts with a cell
  // outside the axes.
  std::string script = "$cells << EOD\n-9 -9 0\n";
  for (int64_t row = 0; row < grid.side; ++row) {
    for (int64_t col = 0; col <= row; ++col) {
      if (grid.at(row, col) == 0) continue;
      const double share = static_cast<double>(grid.at(row, col)) /
                           static_cast<double>(pairs_in_cell(grid, n, row, col));
      const auto center = [&](int64_t cell) {
        return std::to_string(static_cast<double>(cell * grid.scale) + half - 0.5);
      };
      script += center(col) + " " + center(row) + " " + std::to_string(share) + "\n";
    }
  }
  script += "EOD\nset title " + gnuplot_string(title(pattern)) + " noenhanced\n";
  script += triangle_axes(n, "token read, j");
  script += "set palette defined (0 '#c6dbef', 0.5 '#4292c6', 1 '#08306b')\n";
  script += grid.scale > 1 ? "set cbrange [0:*]\nset cblabel 'share of the pairs in a cell'\n"
                           : "set cbrange [0:1]\nunset colorbox\n";
  return script + plot_cells(half);
}

std::string hops_script(const Pattern& pattern) {
  const int64_t n = pattern.size();
  const int64_t scale = std::max<int64_t>(1, (n + kSearched - 1) / kSearched);
  HopSearch search(pattern);
  int32_t largest = 1;
  bool apart = false;
  std::string cells = "$cells << EOD\n-9 -9 0\n";
  for (int64_t i = 0; i < n; i += scale) {
    const std::vector<int32_t>& distance = search.from(i);
    for (int64_t j = 0; j < i; j += scale) {
      apart |= distance[j] < 0;
      if (distance[j] < 0) continue;
      largest = std::max(largest, distance[j]);
      cells += text(j) + " " + text(i) + " " + text(distance[j]) + "\n";
    }
  }
  std::string heading = title(pattern);
  if (scale > 1) heading += ", one in " + text(scale);
  if (apart) heading += " (white: no path)";
  std::string script = cells + "EOD\nset title " + gnuplot_string(heading) + " noenhanced\n";
  script += triangle_axes(n, "token reached, j");
  script += hops_palette(largest);
  return script + "set cblabel 'hops from i back to j'\n" +
         plot_cells(static_cast<double>(scale) / 2);
}

std::string cache_script(const Pattern& pattern) {
  const int64_t n = pattern.size();
  const Cost spent = cost(pattern);
  const int64_t scale = std::max<int64_t>(1, n / kCurvePoints);
  std::vector<int32_t> cols;
  std::string script = "$steps << EOD\n-9 0 0\n";
  for (int64_t first = 0; first < n; first += scale) {
    int64_t kept = 0, reads = 0;
    for (int64_t i = first; i < std::min(n, first + scale); ++i) {
      pattern.row(i, cols);
      kept = std::max(kept, spent.cache[i]);
      reads = std::max(reads, static_cast<int64_t>(cols.size()));
    }
    script += text(first) + " " + text(kept) + " " + text(reads) + "\n";
  }
  script += "EOD\nset title " + gnuplot_string(title(pattern)) + " noenhanced\n";
  script += "set xrange [0:" + text(std::max<int64_t>(1, n)) + "]\nset yrange [0:" +
            text(std::max<int64_t>(1, spent.cache_peak + spent.cache_peak / 10 + 1)) + "]\n";
  script +=
      "set border 3\nset tics out nomirror\nset grid ytics linetype 1 linecolor rgb '#d0d0d0'\n"
      "set xlabel 'token'\nset ylabel 'tokens'\nset key bmargin center horizontal\nset bmargin 6\n";
  // The Okabe-Ito palette, which is safe for colour-blind readers.
  return script +
         "plot $steps using 1:2 with steps linewidth 2 linecolor rgb '#0072B2' title 'kept for "
         "later tokens', $steps using 1:3 with steps linewidth 2 dashtype 2 linecolor rgb "
         "'#D55E00' title 'read by this token'\n";
}

std::string graphviz(const Pattern& pattern) {
  std::string label;
  for (const char c : title(pattern)) {
    if (c == '"' || c == '\\') label += '\\';
    label += c;
  }
  std::string dot = "// token i -> a token that it reads\ndigraph pattern {\n  label=\"" + label +
                    "\";\n  rankdir=RL;\n  node [shape=circle];\n";
  std::vector<int32_t> cols;
  for (int64_t i = 0; i < pattern.size(); ++i) {
    dot += "  " + text(i) + ";\n";
    pattern.row(i, cols);
    for (const int32_t j : cols) dot += "  " + text(i) + " -> " + text(j) + ";\n";
  }
  return dot + "}\n";
}

}  // namespace hopmix
