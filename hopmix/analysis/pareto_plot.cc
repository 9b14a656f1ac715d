#include "hopmix/analysis/pareto_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include "hopmix/analysis/gnuplot.h"
#include "hopmix/analysis/label_layout.h"
#include "hopmix/analysis/pareto.h"
#include "hopmix/base/error.h"

namespace hopmix {
namespace {

constexpr double kLeft = 95, kRight = 25, kTop = 60, kBottom = 70;  // margins in pixels
constexpr int kPanelWidth = 700;
constexpr double kColorbox = 130;

// A logarithmic axis mapped to pixels.
struct Axis {
  double low, high, from, to;
  double pixel(double value) const {
    return from + (to - from) * std::log(value / low) / std::log(high / low);
  }
};

Axis make_axis(const std::vector<double>& values, double from, double to) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  // Leave room for some tics on either side of a single value.
  const double margin = *most > *least ? std::max(1.15, std::pow(*most / *least, 0.12)) : 2;
  return {*least / margin, *most * margin, from, to};
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

// A short name for a tic, so that it does not run into the axis label.
std::string short_number(double value) {
  return value < 1e4   ? number(value)
         : value < 1e6 ? number(value / 1e3) + "k"
                       : number(value / 1e6) + "M";
}

// 1, 2, 5, 10, ... within the axis; a finer series if those are few.
std::string tics(const Axis& axis) {
  std::vector<std::string> list;
  for (const std::vector<double>& steps :
       {std::vector<double>{1, 2, 5}, std::vector<double>{1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9}}) {
    list.clear();
    for (double decade = std::pow(10, std::floor(std::log10(axis.low))); decade <= axis.high;
         decade *= 10) {
      for (const double step : steps) {
        const double tic = step * decade;
        if (tic >= axis.low && tic <= axis.high) {
          list.push_back(gnuplot_string(short_number(tic)) + " " + number(tic));
        }
      }
    }
    if (list.size() >= 3) break;
  }
  std::string joined;
  for (const std::string& tic : list) joined += (joined.empty() ? "" : ", ") + tic;
  return "(" + joined + ")";
}

struct Panel {
  std::string y_label;
  std::vector<std::string> labels;
  std::vector<double> reads, value, cache;
};

void add(Panel& panel, const PlottedPattern& pattern, const std::optional<double>& value) {
  if (!value || !(*value > 0) || !(pattern.reads > 0)) return;
  panel.labels.push_back(pattern.label);
  panel.reads.push_back(pattern.reads);
  panel.value.push_back(*value);
  panel.cache.push_back(std::max(1.0, pattern.cache));
}

std::string draw_panel(const Panel& panel, int index, double width, bool colorbox) {
  const double left = index * kPanelWidth + kLeft;
  const double right = (index + 1) * kPanelWidth - kRight;
  const Box area{left, right, kBottom, kParetoHeight - kTop};
  const Axis x = make_axis(panel.reads, area.left, area.right);
  const Axis y = make_axis(panel.value, area.bottom, area.top);

  std::vector<Point> points;
  std::vector<std::vector<double>> coordinates;
  for (size_t p = 0; p < panel.labels.size(); ++p) {
    points.push_back({x.pixel(panel.reads[p]), y.pixel(panel.value[p])});
    coordinates.push_back({panel.reads[p], panel.value[p]});
  }
  const std::string name = std::to_string(index);
  std::string script = "$points" + name + " << EOD\n";
  for (size_t p = 0; p < panel.labels.size(); ++p) {
    script +=
        number(panel.reads[p]) + " " + number(panel.value[p]) + " " + number(panel.cache[p]) + "\n";
  }
  const std::vector<bool> front = pareto_front(coordinates);
  std::vector<std::vector<double>> line;
  for (size_t p = 0; p < front.size(); ++p) {
    if (front[p]) line.push_back(coordinates[p]);
  }
  std::sort(line.begin(), line.end());
  script += "EOD\n$front" + name + " << EOD\n";
  for (const auto& point : line) script += number(point[0]) + " " + number(point[1]) + "\n";
  script += "EOD\nunset label\nunset arrow\n";

  const auto screen = [&](double px, double py) {
    return "screen " + number(px / width) + "," + number(py / kParetoHeight);
  };
  const std::vector<Box> boxes = place_labels(points, panel.labels, area);
  for (size_t p = 0; p < boxes.size(); ++p) {
    const Box& box = boxes[p];
    const double cx = (box.left + box.right) / 2, cy = (box.bottom + box.top) / 2;
    script += "set label " + gnuplot_string(panel.labels[p]) + " at " + screen(cx, cy) +
              " center noenhanced front font ',10'\n";
    const Point end = nearest_point(box, points[p]);
    if (std::hypot(end[0] - points[p][0], end[1] - points[p][1]) > 12.5) {
      script += "set arrow from " + screen(points[p][0], points[p][1]) + " to " +
                screen(end[0], end[1]) + " nohead back linecolor rgb '#909090'\n";
    }
  }
  script += "set lmargin at screen " + number(area.left / width) + "\nset rmargin at screen " +
            number(area.right / width) + "\nset bmargin at screen " +
            number(area.bottom / kParetoHeight) + "\nset tmargin at screen " +
            number(area.top / kParetoHeight) + "\n";
  script += "set xrange [" + number(x.low) + ":" + number(x.high) + "]\nset yrange [" +
            number(y.low) + ":" + number(y.high) + "]\nset xtics " + tics(x) + "\nset ytics " +
            tics(y) + "\nset xlabel 'reads per token'\nset ylabel " +
            gnuplot_string(panel.y_label) + "\n";
  script += colorbox ? "set colorbox user origin " +
                           screen((index + 1) * kPanelWidth + 15, kBottom).substr(7) + " size " +
                           screen(16, area.top - area.bottom).substr(7) + "\n"
                     : "unset colorbox\n";
  return script + "plot $front" + name +
         " using 1:2 with lines linewidth 1.5 dashtype 3 linecolor rgb '#909090' notitle, $points" +
         name +
         " using 1:2:3 with points pointtype 7 pointsize 1.5 linecolor palette notitle, "
         "$points" +
         name +
         " using 1:2 with points pointtype 6 pointsize 1.5 linecolor rgb '#202020' notitle\n";
}

// The panels that have points.
std::vector<Panel> make_panels(const std::vector<PlottedPattern>& patterns) {
  Panel hops{"mean hops", {}, {}, {}, {}}, congestion{"congestion", {}, {}, {}, {}};
  for (const PlottedPattern& pattern : patterns) {
    add(hops, pattern, pattern.mean_hops);
    add(congestion, pattern, pattern.congestion);
  }
  std::vector<Panel> panels;
  for (Panel& panel : {std::ref(hops), std::ref(congestion)}) {
    if (!panel.labels.empty()) panels.push_back(std::move(panel));
  }
  if (panels.empty()) {
    throw Error("nothing to plot: no pattern has a path between all of its tokens");
  }
  return panels;
}

}  // namespace

int pareto_width(const std::vector<PlottedPattern>& patterns) {
  return kPanelWidth * static_cast<int>(make_panels(patterns).size()) + static_cast<int>(kColorbox);
}

std::string pareto_script(const std::vector<PlottedPattern>& patterns, const std::string& title) {
  const std::vector<Panel> panels = make_panels(patterns);
  const double width = pareto_width(patterns);
  double least = INFINITY, most = 1;
  for (const PlottedPattern& pattern : patterns) {
    least = std::min(least, std::max(1.0, pattern.cache));
    most = std::max(most, pattern.cache);
  }
  if (!(least < most)) most = 2 * std::max(1.0, most), least = most / 4;
  std::string script =
      "set multiplot title " + gnuplot_string(title) +
      " noenhanced\nset logscale xy\n"
      "set logscale cb\nset border 3\nset tics out nomirror\n"
      "set grid linetype 1 linecolor rgb '#e0e0e0'\n"
      // Viridis: perceptually uniform, and readable without colour.
      "set palette defined (0 '#440154', 1 '#3b528b', 2 '#21918c', 3 '#5ec962', 4 '#fde725')\n"
      "set cblabel 'cache (tokens)' offset 0.7,0\nset cbrange [" +
      number(least) + ":" + number(most) + "]\nset cbtics " + tics({least, most, 0, 1}) + "\n";
  for (size_t p = 0; p < panels.size(); ++p) {
    script += draw_panel(panels[p], static_cast<int>(p), width, p + 1 == panels.size());
  }
  return script + "unset multiplot\n";
}

}  // namespace hopmix
