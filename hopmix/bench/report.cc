#include "hopmix/bench/report.h"

#include <algorithm>
#include <map>
#include <set>

#include "hopmix/base/status_line.h"
#include "hopmix/base/text_table.h"

namespace hopmix::bench {
namespace {

using Json = nlohmann::ordered_json;

// "1.50 ms", with three significant digits.
std::string scaled(double value, const std::vector<std::pair<double, const char*>>& units) {
  for (const auto& [unit, name] : units) {
    if (value < unit && unit != units.back().first) continue;
    const double number = value / unit;
    return fixed(number, number < 10 ? 2 : number < 100 ? 1 : 0) + " " + name;
  }
  return "";
}

std::string time_text(double seconds) {
  return scaled(seconds, {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}});
}

std::string bytes_text(double bytes) {
  return scaled(bytes, {{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}, {1, "B"}});
}

template <typename Format>
std::string or_dash(const std::optional<double>& value, const Format& format) {
  return value ? format(*value) : "-";
}

std::string ratio_text(const std::optional<double>& ratio) {
  return or_dash(ratio, [](double r) { return fixed(r, r < 10 ? 2 : 1) + "x"; });
}

std::string percent_text(const std::optional<double>& part) {
  return or_dash(part, [](double p) { return fixed(100 * p, 0) + "%"; });
}

// The rates that a result's bandwidth is compared with; null if there are none.
const Level* ceiling_of(const Report& report, const Result& result) {
  if (!result.useful_bytes()) return nullptr;
  return level_of(report.levels, result.working_set_bytes(), report.settings.threads);
}

std::optional<double> part_of(const std::optional<double>& rate, double ceiling) {
  if (!rate || ceiling <= 0) return {};
  return *rate / ceiling;
}

std::string shape_text(const Shape& s) {
  return "B " + std::to_string(s.batch) + ", H " + std::to_string(s.heads) + ", D " +
         std::to_string(s.width) + ", T " + std::to_string(s.length);
}

std::vector<std::string> to_row(const Report& report, const Result& result) {
  const Level* level = ceiling_of(report, result);
  const auto rate = result.useful_gb_per_s();
  const std::string memory =
      result.extra_bytes ? bytes_text(static_cast<double>(*result.extra_bytes)) : "-";
  return {result.which.name,
          time_text(result.seconds),
          format_count(result.tokens_per_second()),
          ratio_text(result.over_attention),
          ratio_text(result.over_dense_solve),
          or_dash(rate, [](double r) { return fixed(r, 1); }),
          level ? level->name : "-",
          percent_text(level ? part_of(rate, level->in_order_gb_per_s) : std::nullopt),
          percent_text(level ? part_of(rate, level->rows_gb_per_s) : std::nullopt),
          memory,
          or_dash(result.extra_matrices(), [](double m) { return fixed(m, 4); })};
}

// A table without the columns that are empty in every row.
std::string without_empty_columns(std::vector<std::string> head,
                                  std::vector<std::vector<std::string>> rows) {
  for (size_t c = head.size(); c-- > 1;) {
    if (std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row[c] != "-"; })) {
      continue;
    }
    head.erase(head.begin() + static_cast<std::ptrdiff_t>(c));
    for (auto& row : rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(c));
  }
  return text_table(head, rows);
}

// Results that differ only in case and length.
struct Family {
  int64_t batch, heads, width;
  bool backward;
  auto operator<=>(const Family&) const = default;
};

struct Series {
  Case which;
  std::vector<Timing> timings;
  std::map<int64_t, std::optional<double>> over_attention;
};

// Grouped by family, in list order.
std::map<Family, std::vector<Series>> series_of(const Report& report) {
  std::map<Family, std::vector<Series>> families;
  for (const Result& result : report.results) {
    const Shape& s = result.shape;
    std::vector<Series>& list = families[{s.batch, s.heads, s.width, result.backward}];
    auto at = std::find_if(list.begin(), list.end(),
                           [&](const Series& one) { return one.which.name == result.which.name; });
    if (at == list.end())
      at = list.insert(at, {.which = result.which, .timings = {}, .over_attention = {}});
    at->timings.push_back({s.length, result.seconds});
    at->over_attention[s.length] = result.over_attention;
  }
  return families;
}

const Series* attention_in(const std::vector<Series>& list) {
  for (const Series& one : list) {
    if (one.which.name == kAttention) return &one;
  }
  return nullptr;
}

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json to_json(const Report& report, const Result& result) {
  const Level* level = ceiling_of(report, result);
  const auto rate = result.useful_gb_per_s();
  const bool has_pattern = !result.which.pattern.empty();
  return {
      {"case", result.which.name},
      {"group", result.which.group},
      {"pattern", has_pattern ? Json(result.which.pattern) : Json(nullptr)},
      {"direction", direction_name(result.backward)},
      {"batch", result.shape.batch},
      {"heads", result.shape.heads},
      {"width", result.shape.width},
      {"length", result.shape.length},
      {"seconds", result.seconds},
      {"times", result.times},
      {"tokens_per_second", result.tokens_per_second()},
      {"over_sdpa", or_null(result.over_attention)},
      {"over_dense_solve", or_null(result.over_dense_solve)},
      {"reads", has_pattern ? Json(result.reads) : Json(nullptr)},
      {"useful_bytes", or_null(result.useful_bytes())},
      {"useful_gb_per_s", or_null(rate)},
      {"working_set_bytes", level ? Json(result.working_set_bytes()) : Json(nullptr)},
      {"level", level ? Json(level->name) : Json(nullptr)},
      {"part_of_loads", or_null(level ? part_of(rate, level->in_order_gb_per_s) : std::nullopt)},
      {"part_of_row_loads", or_null(level ? part_of(rate, level->rows_gb_per_s) : std::nullopt)},
      {"extra_bytes", result.extra_bytes ? Json(*result.extra_bytes) : Json(nullptr)},
      {"extra_matrices", or_null(result.extra_matrices())},
  };
}

}  // namespace

std::string dtype_name(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? "bfloat16" : "float32";
}

std::vector<int64_t> lengths_of(const Report& report) {
  std::set<int64_t> lengths;
  for (const Result& result : report.results) lengths.insert(result.shape.length);
  return {lengths.begin(), lengths.end()};
}

std::string tables(const Report& report) {
  std::string text;
  for (const bool backward : {false, true}) {
    std::vector<Shape> shapes;
    for (const Result& result : report.results) {
      if (result.backward == backward &&
          std::find(shapes.begin(), shapes.end(), result.shape) == shapes.end()) {
        shapes.push_back(result.shape);
      }
    }
    for (const Shape& shape : shapes) {
      std::vector<std::vector<std::string>> rows;
      for (const Result& result : report.results) {
        if (result.backward == backward && result.shape == shape) {
          rows.push_back(to_row(report, result));
        }
      }
      text += std::string(direction_name(backward)) + ", " + shape_text(shape) + "\n" +
              without_empty_columns({"", "median", "tokens/s", "over sdpa", "over solve",
                                     "useful GB/s", "in", "of loads", "of rows", "memory", "n x n"},
                                    std::move(rows)) +
              "\n";
    }
  }
  return text;
}

std::string crossover_tables(const Report& report) {
  std::string text;
  for (const auto& [family, list] : series_of(report)) {
    const Series* attention = attention_in(list);
    if (attention == nullptr || attention->timings.size() < 2) continue;
    std::vector<std::string> head = {std::string(direction_name(family.backward)) +
                                     ": times as fast as sdpa at T ="};
    for (const Timing& timing : attention->timings) head.push_back(std::to_string(timing.length));
    head.push_back("faster from");
    std::vector<std::vector<std::string>> rows;
    for (const Series& one : list) {
      if (one.which.name == kAttention) continue;
      std::vector<std::string> row = {one.which.name};
      for (const Timing& timing : attention->timings) {
        const auto found = one.over_attention.find(timing.length);
        row.push_back(found == one.over_attention.end() ? "-" : ratio_text(found->second));
      }
      const auto from = crossover(one.timings, attention->timings);
      row.push_back(from ? std::to_string(*from) : "-");
      rows.push_back(std::move(row));
    }
    text += text_table(head, rows) + "\n";
  }
  return text;
}

std::string level_table(const std::vector<Level>& levels) {
  std::vector<std::vector<std::string>> rows;
  for (const Level& level : levels) {
    rows.push_back(
        {level.name,
         level.capacity_bytes ? bytes_text(static_cast<double>(level.capacity_bytes)) : "-",
         bytes_text(static_cast<double>(level.buffer_bytes)), std::to_string(level.threads),
         fixed(level.in_order_gb_per_s, 1), fixed(level.rows_gb_per_s, 1)});
  }
  return text_table(
      {"loads from", "holds", "measured over", "threads", "GB/s in order", "GB/s of rows"}, rows);
}

std::string left_out_lines(const std::vector<LeftOut>& left_out) {
  std::string text;
  for (const LeftOut& one : left_out) {
    text += "left out: " + one.name + " at T " + std::to_string(one.length) + " (" + one.reason +
            "; timed up to " + std::to_string(one.longest) + ")\n";
  }
  return text;
}

nlohmann::ordered_json to_json(const Report& report) {
  Json json = {{"suite", report.suite},
               {"machine", report.machine},
               {"settings",
                {{"dtype", dtype_name(report.settings.dtype)},
                 {"threads", report.settings.threads},
                 {"clock", report.settings.threads > 1 ? "wall" : "thread CPU"}}},
               {"seconds", report.seconds},
               {"interrupted", report.interrupted},
               {"levels", Json::array()},
               {"results", Json::array()},
               {"crossover", Json::array()},
               {"left_out", Json::array()}};
  for (const Level& level : report.levels) {
    json["levels"].push_back(
        {{"level", level.name},
         {"capacity_bytes", level.capacity_bytes ? Json(level.capacity_bytes) : Json(nullptr)},
         {"buffer_bytes", level.buffer_bytes},
         {"threads", level.threads},
         {"in_order_gb_per_s", level.in_order_gb_per_s},
         {"rows_gb_per_s", level.rows_gb_per_s}});
  }
  for (const Result& result : report.results) json["results"].push_back(to_json(report, result));
  for (const auto& [family, list] : series_of(report)) {
    const Series* attention = attention_in(list);
    if (attention == nullptr || attention->timings.size() < 2) continue;
    for (const Series& one : list) {
      if (one.which.name == kAttention) continue;
      const auto from = crossover(one.timings, attention->timings);
      json["crossover"].push_back({{"case", one.which.name},
                                   {"direction", direction_name(family.backward)},
                                   {"batch", family.batch},
                                   {"heads", family.heads},
                                   {"width", family.width},
                                   {"faster_from", from ? Json(*from) : Json(nullptr)}});
    }
  }
  for (const LeftOut& one : report.left_out) {
    json["left_out"].push_back({{"case", one.name},
                                {"length", one.length},
                                {"longest", one.longest},
                                {"reason", one.reason}});
  }
  return json;
}

}  // namespace hopmix::bench
