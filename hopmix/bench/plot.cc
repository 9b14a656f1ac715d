#include "hopmix/bench/plot.h"

#include <algorithm>
#include <functional>
#include <sstream>

#include "hopmix/analysis/gnuplot.h"

namespace hopmix::bench {
namespace {

constexpr int kPanelWidth = 520, kPanelHeight = 420, kKeyWidth = 230;

// The Okabe-Ito palette, which is safe for colour-blind readers.
constexpr const char* kColours[] = {"#0072B2", "#E69F00", "#009E73", "#CC79A7",
                                    "#56B4E9", "#D55E00", "#F0E442", "#000000"};

// The names of the cases, in order.
std::vector<std::string> names_of(const Report& report) {
  std::vector<std::string> names;
  for (const Result& result : report.results) {
    if (std::find(names.begin(), names.end(), result.which.name) == names.end()) {
      names.push_back(result.which.name);
    }
  }
  return names;
}

using Value = std::function<std::optional<double>(const Result&)>;

class Script {
 public:
  explicit Script(const Report& report) : report_(report), names_(names_of(report)) {}

  // A panel with a line for each case that has values at two or more lengths.
  void add_panel(const std::string& title, const std::string& label, bool backward,
                 const Value& value, const std::string& more = "") {
    std::ostringstream plots;
    bool first = true;
    for (size_t i = 0; i < names_.size(); ++i) {
      std::ostringstream data;
      int points = 0;
      for (const Result& result : report_.results) {
        if (result.which.name != names_[i] || result.backward != backward) continue;
        const auto y = value(result);
        if (!y) continue;
        data << result.shape.length << " " << *y << "\n";
        ++points;
      }
      if (points < 2) continue;
      const std::string block = "$data" + std::to_string(blocks_++);
      script_ << block << " << EOD\n" << data.str() << "EOD\n";
      plots << (first ? "" : ", ") << block << " with linespoints lw 2 ps 0.7 pt "
            << 5 + 2 * (i / std::size(kColours)) << " dt " << 1 + i / std::size(kColours)
            << " lc rgb '" << kColours[i % std::size(kColours)] << "' title "
            << gnuplot_string(names_[i]) << " noenhanced";
      first = false;
    }
    if (first) return;
    if (!more.empty()) plots << ", " << more;
    panels_.push_back("set title " + gnuplot_string(title) + "\nset ylabel " +
                      gnuplot_string(label) + "\nplot " + plots.str() + "\n");
  }

  void add_data(const std::string& name, const std::string& data) {
    script_ << name << " << EOD\n" << data << "EOD\n";
  }

  void draw(const std::filesystem::path& output) const {
    const int count = static_cast<int>(panels_.size());
    if (count == 0) return;
    std::ostringstream all;
    all << script_.str()
        << "set logscale xy\nset logscale x 2\nset xlabel 'T'\nset grid lc rgb '#e0e0e0'\n"
        << "set border 3\nset tics nomirror\nset key outside right top samplen 2\n"
        << "set format x '%.0f'\nset xtics rotate by -45\n"
        << "set multiplot layout 1," << count << "\n";
    for (const std::string& panel : panels_) all << panel;
    all << "unset multiplot\n";
    plot(all.str(), output, count * (kPanelWidth + kKeyWidth), kPanelHeight);
  }

 private:
  const Report& report_;
  std::vector<std::string> names_;
  std::ostringstream script_;
  std::vector<std::string> panels_;
  int blocks_ = 0;
};

// The load bandwidth for the working set of each length, as lines of "T in-order rows".
std::string ceilings(const Report& report) {
  std::ostringstream data;
  for (const int64_t length : lengths_of(report)) {
    for (const Result& result : report.results) {
      if (result.shape.length != length || !result.useful_bytes()) continue;
      const Level* level =
          level_of(report.levels, result.working_set_bytes(), report.settings.threads);
      if (level == nullptr) continue;
      data << length << " " << level->in_order_gb_per_s << " " << level->rows_gb_per_s << "\n";
      break;
    }
  }
  return data.str();
}

}  // namespace

void plot_report(const Report& report, bool rates, const std::filesystem::path& output) {
  Script script(report);
  for (const bool backward : {false, true}) {
    script.add_panel(direction_name(backward), "nanoseconds per token", backward,
                     [](const Result& result) -> std::optional<double> {
                       return 1e9 / result.tokens_per_second();
                     });
  }
  if (rates) {
    script.add_data("$ceiling", ceilings(report));
    script.add_panel(
        "rows fetched, forward", "useful GB/s", false,
        [](const Result& result) { return result.useful_gb_per_s(); },
        "$ceiling using 1:2 with lines lw 2 lc rgb '#808080' title 'loads in order', "
        "$ceiling using 1:3 with lines lw 2 dt 2 lc rgb '#808080' title 'loads of "
        "rows'");
  }
  script.draw(output);
}

}  // namespace hopmix::bench
