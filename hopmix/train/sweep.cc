#include "hopmix/train/sweep.h"

#include <algorithm>
#include <cmath>

#include "hopmix/base/nearest.h"
#include "hopmix/base/text_table.h"
#include "hopmix/train/run_directory.h"

namespace hopmix::train {
namespace {

// Names become folder names.
std::string folder_name(const std::string& name) {
  std::string folder;
  for (const char c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.';
    folder += plain ? c : '_';
  }
  return folder;
}

// --seeds sets the seeds, and each run uses one thread.
void check_settings(const std::vector<std::string>& settings, const std::string& where) {
  for (const std::string& setting : settings) {
    if (setting.starts_with("seed=") || setting.starts_with("threads=")) {
      throw Error(where + " = '" + setting +
                  "': --seeds sets the seeds, and each run uses one thread");
    }
  }
}

SweepColumn read_column(config::Table table) {
  SweepColumn column;
  column.name = table.require("name");
  column.title = table.get("title", column.name);
  if (table.has("slice")) column.slice = table.get_at_least("slice", 0, 0);
  column.task = table.table("task").node();
  column.settings = table.strings("set");
  check_settings(column.settings, table.name("set"));
  table.finish();
  return column;
}

SweepRow read_row(config::Table table, const std::vector<SweepColumn>& columns) {
  SweepRow row;
  row.name = table.require("name");
  row.time = table.get("time", "");
  row.cache = table.get("cache", "");
  for (const config::Table& block : table.tables("blocks")) row.blocks.push_back(block.node());
  row.settings = table.strings("set");
  check_settings(row.settings, table.name("set"));
  if (table.has("paper")) {
    config::Table paper = table.table("paper");
    for (const SweepColumn& column : columns) {
      if (paper.has(column.name)) row.paper[column.name] = paper.get(column.name, 0.0);
    }
    paper.finish();
  }
  table.finish();
  return row;
}

SweepEvaluation read_evaluation(config::Table table, const std::vector<SweepRow>& rows) {
  SweepEvaluation evaluation;
  evaluation.name = table.require("name");
  const std::string of = table.require("row");
  std::vector<std::string> names;
  for (const SweepRow& row : rows) names.push_back(row.name);
  const auto found = std::find(names.begin(), names.end(), of);
  if (found == names.end()) throw table.bad("row", "must be a row's name" + suggestion(of, names));
  evaluation.row = static_cast<size_t>(found - names.begin());
  evaluation.settings = table.strings("set");
  check_settings(evaluation.settings, table.name("set"));
  table.finish();
  return evaluation;
}

// Two names that map to the same folder would share a run.
template <typename Named>
void check_folders(const std::vector<Named>& list, const std::string& key) {
  std::map<std::string, std::string> names;
  for (const Named& each : list) {
    const auto [found, fresh] = names.emplace(folder_name(each.name), each.name);
    if (!fresh) {
      throw Error(key + " '" + found->second + "' and '" + each.name + "' share the folder '" +
                  found->first + "'; rename one");
    }
  }
}

// The accuracy of `column` in a final score.
double accuracy_of(const SweepColumn& column, const nlohmann::json& eval) {
  if (!column.slice) return eval.at("accuracy").get<double>();
  const nlohmann::json slices = eval.value("slices", nlohmann::json::object());
  for (const auto& [name, value] : slices.items()) {
    if (name.ends_with(" " + std::to_string(*column.slice))) return value.get<double>();
  }
  throw Error("columns." + column.name + ".slice = " + std::to_string(*column.slice) +
              ": the task has no such slice");
}

}  // namespace

Sweep read_sweep(const std::filesystem::path& file) {
  toml::table document = config::parse_file(file);
  config::Table root(document);
  Sweep sweep;
  sweep.name = file.stem();
  sweep.title = root.get("title", sweep.name);
  sweep.note = root.get("note", "");
  sweep.reference = root.get("reference", sweep.reference);
  sweep.base = root.table("base").node();
  for (const config::Table& table : root.tables("columns")) {
    SweepColumn column = read_column(table);
    const auto first =
        std::find_if(sweep.columns.begin(), sweep.columns.end(), [&](const SweepColumn& c) {
          return c.task == column.task && c.settings == column.settings;
        });
    column.run = static_cast<size_t>(first - sweep.columns.begin());
    sweep.columns.push_back(std::move(column));
  }
  for (const config::Table& row : root.tables("rows")) {
    sweep.rows.push_back(read_row(row, sweep.columns));
  }
  for (const config::Table& table : root.tables("evaluations")) {
    sweep.evaluations.push_back(read_evaluation(table, sweep.rows));
  }
  root.finish();
  check_folders(sweep.columns, "columns");
  check_folders(sweep.rows, "rows");
  if (sweep.columns.empty()) throw root.bad("columns", "needs at least one");
  if (sweep.rows.empty()) throw root.bad("rows", "needs at least one");
  return sweep;
}

std::vector<Cell> make_cells(const Sweep& sweep, int64_t seeds, const std::filesystem::path& root,
                             const std::vector<std::string>& settings) {
  std::vector<Cell> cells;
  for (int64_t seed = 0; seed < seeds; ++seed) {
    for (size_t c = 0; c < sweep.columns.size(); ++c) {
      if (sweep.columns[c].run != c) continue;
      for (size_t r = 0; r < sweep.rows.size(); ++r) {
        const SweepColumn& column = sweep.columns[c];
        const SweepRow& row = sweep.rows[r];
        Cell cell;
        cell.row = r;
        cell.column = c;
        cell.seed = seed;
        cell.run = root / folder_name(column.name) / folder_name(row.name) /
                   ("seed-" + std::to_string(seed));
        cell.config = sweep.base;
        cell.config.insert_or_assign("seed", seed);
        cell.config.insert_or_assign("task", column.task);
        if (!cell.config.contains("model")) cell.config.insert("model", toml::table{});
        cell.config["model"].as_table()->insert_or_assign("blocks", row.blocks);
        for (const auto* list : {&column.settings, &row.settings, &settings}) {
          for (const std::string& setting : *list) config::set(cell.config, setting);
        }
        cells.push_back(std::move(cell));
      }
    }
  }
  return cells;
}

Sweep evaluation_sweep(const Sweep& sweep) {
  Sweep result;
  result.name = sweep.name + "-evaluations";
  result.title = "Trained models of this table, evaluated otherwise";
  result.columns = sweep.columns;
  for (const SweepEvaluation& evaluation : sweep.evaluations) {
    SweepRow row;
    row.name = evaluation.name;
    row.settings = evaluation.settings;
    result.rows.push_back(std::move(row));
  }
  return result;
}

std::vector<Cell> evaluation_cells(const Sweep& sweep, const std::vector<Cell>& cells) {
  std::vector<Cell> result;
  for (size_t e = 0; e < sweep.evaluations.size(); ++e) {
    for (const Cell& cell : cells) {
      if (cell.row != sweep.evaluations[e].row) continue;
      result.push_back(cell);
      result.back().row = e;
      for (const std::string& setting : sweep.evaluations[e].settings) {
        config::set(result.back().config, setting);
      }
    }
  }
  return result;
}

std::vector<nlohmann::json> read_results(const std::vector<Cell>& cells) {
  std::vector<nlohmann::json> results;
  for (const Cell& cell : cells) results.push_back(final_score(cell.run));
  return results;
}

Summary summarize(const std::vector<double>& values) {
  Summary s;
  s.count = static_cast<int64_t>(values.size());
  if (values.empty()) return s;
  for (const double v : values) s.mean += v / static_cast<double>(s.count);
  if (s.count < 2) return s;
  double squares = 0;
  for (const double v : values) squares += (v - s.mean) * (v - s.mean);
  s.deviation = std::sqrt(squares / static_cast<double>(s.count - 1));
  return s;
}

AccuracyTable collect(const Sweep& sweep, const std::vector<Cell>& cells,
                      const std::vector<nlohmann::json>& results) {
  AccuracyTable table(sweep.rows.size(), std::vector<std::vector<double>>(sweep.columns.size()));
  for (size_t i = 0; i < cells.size(); ++i) {
    if (results[i].is_null()) continue;
    for (size_t c = 0; c < sweep.columns.size(); ++c) {
      if (sweep.columns[c].run != cells[i].column) continue;
      table[cells[i].row][c].push_back(accuracy_of(sweep.columns[c], results[i]));
    }
  }
  return table;
}

nlohmann::json to_json(const Sweep& sweep, const std::vector<Cell>& cells,
                       const std::vector<nlohmann::json>& results) {
  const AccuracyTable table = collect(sweep, cells, results);
  nlohmann::json json = {
      {"name", sweep.name}, {"title", sweep.title}, {"rows", nlohmann::json::array()}};
  for (size_t r = 0; r < sweep.rows.size(); ++r) {
    const SweepRow& row = sweep.rows[r];
    nlohmann::json columns = nlohmann::json::object();
    for (size_t c = 0; c < sweep.columns.size(); ++c) {
      const std::string& name = sweep.columns[c].name;
      const Summary summary = summarize(table[r][c]);
      nlohmann::json entry = {{"accuracy", table[r][c]}, {"mean", nullptr}, {"deviation", nullptr}};
      if (summary.count > 0) entry["mean"] = summary.mean;
      if (summary.count > 1) entry["deviation"] = summary.deviation;
      if (const auto paper = row.paper.find(name); paper != row.paper.end())
        entry["paper"] = paper->second;
      columns[name] = std::move(entry);
    }
    nlohmann::json runs = nlohmann::json::array();
    for (size_t i = 0; i < cells.size(); ++i) {
      if (cells[i].row != r || results[i].is_null()) continue;
      runs.push_back({{"column", sweep.columns[cells[i].column].name},
                      {"seed", cells[i].seed},
                      {"eval", results[i]}});
    }
    json["rows"].push_back({{"name", row.name},
                            {"time", row.time},
                            {"cache", row.cache},
                            {"columns", std::move(columns)},
                            {"runs", std::move(runs)}});
  }
  for (const Cell& cell : cells) {
    if (cell.row == 0 && cell.seed == 0) {
      json["configs"][sweep.columns[cell.column].name] = config::to_string(cell.config);
    }
  }
  return json;
}

std::string to_text(const Sweep& sweep, const AccuracyTable& table) {
  std::vector<std::string> head = {"structure", "time/token", "cache"};
  for (const SweepColumn& column : sweep.columns) head.push_back(column.title);
  std::vector<std::vector<std::string>> rows;
  bool paper = false;
  for (size_t r = 0; r < sweep.rows.size(); ++r) {
    const SweepRow& row = sweep.rows[r];
    rows.push_back({row.name, row.time, row.cache});
    for (size_t c = 0; c < sweep.columns.size(); ++c) {
      const Summary summary = summarize(table[r][c]);
      std::string text = summary.count ? fixed(summary.mean, 2) : "...";
      if (summary.count > 1) text += " ±" + fixed(summary.deviation, 2);
      if (const auto found = row.paper.find(sweep.columns[c].name); found != row.paper.end()) {
        text += " (" + fixed(found->second, 2) + ")";
        paper = true;
      }
      rows.back().push_back(text);
    }
  }
  return sweep.title + "\n\n" + text_table(head, rows, {true, true, true}) +
         "\nAccuracy in percent" + (paper ? "; " + sweep.reference + " in parentheses." : ".") +
         (sweep.note.empty() ? "" : " " + sweep.note) + "\n";
}

}  // namespace hopmix::train
