#include "hopmix/cli/sweep_plot.h"

#include <cmath>
#include <sstream>

#include "hopmix/analysis/gnuplot.h"

namespace hopmix::cli {

void plot_sweep(const train::Sweep& sweep, const train::Table& table, const std::filesystem::path& output) {
  const size_t rows = sweep.rows.size(), columns = sweep.columns.size();
  bool paper = false, deviation = false;
  for (size_t r = 0; r < rows; ++r) {
    paper |= !sweep.rows[r].paper.empty();
    for (const std::vector<double>& values : table[r]) deviation |= values.size() > 1;
  }

  // The first row stands on top, so y runs downwards. One data block a column: y, mean, deviation, paper.
  std::ostringstream script;
  for (size_t c = 0; c < columns; ++c) {
    script << "$column" << c << " << EOD\n";
    for (size_t r = 0; r < rows; ++r) {
      const train::Summary summary = train::summarize(table[r][c]);
      const auto figure = sweep.rows[r].paper.find(sweep.columns[c].name);
      script << r << " " << (summary.count ? summary.mean : std::nan("")) << " " << summary.deviation << " "
             << (figure == sweep.rows[r].paper.end() ? std::nan("") : figure->second) << "\n";
    }
    script << "EOD\n";
  }
  // Colours of Okabe and Ito, which colour-blind readers tell apart.
  script << "set datafile missing 'nan'\n"
         << "set yrange [" << rows - 0.4 << ":-0.6]\nset xrange [0:105]\nset xtics 0,25,100\n"
         << "set grid xtics lc rgb '#d0d0d0'\nset border 3\nset tics nomirror\n"
         << "set style fill solid 1.0 noborder\nset boxwidth 0.7\n"
         << "set key off\nset xlabel 'accuracy (%)'\n"
         << "set multiplot layout 1," << columns << " title " << gnuplot_string(sweep.title)
         << " noenhanced margins screen 0.16,0.985,0.2,0.8 spacing screen 0.02,0\n";
  for (size_t c = 0; c < columns; ++c) {
    script << "set title " << gnuplot_string(sweep.columns[c].title) << " noenhanced\n";
    if (c == 0) {
      script << "set ytics (";
      for (size_t r = 0; r < rows; ++r) script << (r ? "," : "") << gnuplot_string(sweep.rows[r].name) << " " << r;
      script << ") noenhanced\n";
    } else {
      script << "set format y ''\n";
    }
    if (c + 1 == columns && (paper || deviation)) {
      script << "set key at screen 0.985,0.07 right horizontal samplen 1.5\n";
    }
    const std::string data = "$column" + std::to_string(c);
    script << "plot " << data << " using ($2/2):1:($2/2):(0.35) with boxxyerror lc rgb '#0072B2' title 'measured'";
    if (deviation) {
      script << ", " << data << " using 2:1:3 with xerrorbars pt 0 lw 1.5 lc rgb '#000000' title 'deviation over seeds'";
    }
    if (paper) {
      script << ", " << data << " using 4:1 with points pt 13 ps 1.4 lc rgb '#E69F00' title 'paper'";
    }
    script << "\n";
  }
  script << "unset multiplot\n";
  const int width = 260 + 240 * static_cast<int>(columns), height = 150 + 34 * static_cast<int>(rows);
  plot(script.str(), output, width, height);
}

}  // namespace hopmix::cli
