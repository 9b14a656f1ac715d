#include "hopmix/cli/sweep_plot.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "hopmix/analysis/gnuplot.h"

namespace hopmix::cli {

void plot_sweep(const train::Sweep& sweep, const train::AccuracyTable& table,
                const std::filesystem::path& output) {
  const size_t rows = sweep.rows.size(), columns = sweep.columns.size();
  bool paper = false, deviation = false;
  for (size_t r = 0; r < rows; ++r) {
    paper |= !sweep.rows[r].paper.empty();
    for (const std::vector<double>& values : table[r]) deviation |= values.size() > 1;
  }

  // The first row is at the top, so y points down. One data block per column: y, mean, deviation,
  // paper.
  std::ostringstream script;
  for (size_t c = 0; c < columns; ++c) {
    script << "$column" << c << " << EOD\n";
    for (size_t r = 0; r < rows; ++r) {
      const train::Summary summary = train::summarize(table[r][c]);
      const auto figure = sweep.rows[r].paper.find(sweep.columns[c].name);
      script << r << " " << (summary.count ? summary.mean : std::nan("")) << " "
             << summary.deviation << " "
             << (figure == sweep.rows[r].paper.end() ? std::nan("") : figure->second) << "\n";
    }
    script << "EOD\n";
  }
  // Pixels: row labels are left of the first panel, the key is below all panels.
  size_t longest = 0;
  for (const train::SweepRow& row : sweep.rows) longest = std::max(longest, row.name.size());
  const int width = 80 + 9 * static_cast<int>(longest) + 230 * static_cast<int>(columns);
  const int height = 190 + 30 * static_cast<int>(rows);
  const double left = (40.0 + 9.0 * static_cast<double>(longest)) / width;
  const double bottom = 105.0 / height, top = 1 - 75.0 / height;

  // The Okabe-Ito palette, which is safe for colour-blind readers.
  script << "set datafile missing 'nan'\n"
         << "set yrange [" << rows - 0.4 << ":-0.6]\nset xrange [0:105]\nset xtics 0,25,100\n"
         << "set grid xtics lc rgb '#d0d0d0'\nset border 3\nset tics nomirror\n"
         << "set style fill solid 1.0 noborder\nset key off\nset xlabel 'accuracy (%)'\n"
         << "set multiplot layout 1," << columns << " title " << gnuplot_string(sweep.title)
         << " noenhanced margins screen " << left << ",0.98," << bottom << "," << top
         << " spacing screen 0.025,0\n"
         << "set ytics (";
  for (size_t r = 0; r < rows; ++r) {
    script << (r ? "," : "") << gnuplot_string(sweep.rows[r].name) << " " << r;
  }
  script << ") noenhanced\n";
  // gnuplot's own key wraps at the width of one panel.
  int from_right = 0, label = 0;
  const auto name_sign = [&](const char* name, const char* sign) {
    from_right += 125;
    script << "set label " << ++label << " '" << name << "' at screen "
           << 1 - static_cast<double>(from_right) / width << "," << 18.0 / height << " left point "
           << sign << " offset 1.2,0\n";
  };
  const bool of_paper = sweep.reference == train::Sweep().reference;
  if (paper) name_sign(of_paper ? "paper" : "reference", "pt 13 ps 1.4 lc rgb '#E69F00'");
  if (deviation) name_sign("deviation", "pt 2 ps 0.8 lc rgb '#000000'");
  if (paper || deviation) name_sign("measured", "pt 5 ps 1.6 lc rgb '#0072B2'");
  for (size_t c = 0; c < columns; ++c) {
    script << "set title " << gnuplot_string(sweep.columns[c].title) << " noenhanced\n";
    if (c == 1) script << "unset ytics\nunset label\n";
    const std::string data = "$column" + std::to_string(c);
    script << "plot " << data << " using ($2/2):1:($2/2):(0.35) with boxxyerror lc rgb '#0072B2'";
    if (deviation) {
      script << ", " << data << " using 2:1:3 with xerrorbars pt 0 lw 1.5 lc rgb '#000000'";
    }
    if (paper) {
      script << ", " << data << " using 4:1 with points pt 13 ps 1.4 lc rgb '#E69F00'";
    }
    script << "\n";
  }
  script << "unset multiplot\n";
  plot(script.str(), output, width, height);
}

}  // namespace hopmix::cli
