// A sweep: the table of structures by tasks that `hopmix reproduce` fills, described by a TOML
// file.
//
//   title, note        shown above and below the table
//   reference          what the figures under `paper` are, "the paper's figure" if absent
//   [base]             a config without task and blocks
//   [[columns]]        name, title, task = {...}; slice (all count if absent), set = ["key=value"]
//   [[rows]]           name, time, cache, blocks = [{...}], paper = {COLUMN = percent}, set
//   [[evaluations]]    name, row, set: a second table, the trained models of a row under other
//   settings
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hopmix/config/config.h"

namespace hopmix::train {

struct SweepColumn {
  std::string name, title;
  std::optional<int64_t> slice;
  toml::table task;
  std::vector<std::string> settings;
  size_t run = 0;  // the first column with the same task and settings, whose runs this one shares
};

struct SweepRow {
  std::string name, time, cache;  // of the structure, a token
  toml::array blocks;
  std::vector<std::string> settings;
  std::map<std::string, double> paper;  // the paper's figure for a column, percent
};

struct SweepEvaluation {
  std::string name;
  size_t row = 0;  // the row whose models are evaluated
  std::vector<std::string> settings;
};

struct Sweep {
  std::string name, title, note;
  std::string reference = "the paper's figure";  // what the figures under `paper` are
  toml::table base;
  std::vector<SweepColumn> columns;
  std::vector<SweepRow> rows;
  std::vector<SweepEvaluation> evaluations;
};

/// Reads and checks a sweep file. Throws Error.
Sweep read_sweep(const std::filesystem::path& file);

/// One run. It fills a row's entry in `column` and in every column that shares its runs.
struct Cell {
  size_t row = 0, column = 0;
  int64_t seed = 0;
  std::filesystem::path run;  // its run directory, below `root`
  toml::table config;         // not yet resolved
};

/// The cells for seeds 0..seeds-1, seeds outermost, so that the table is complete for one seed
/// before the next starts.
std::vector<Cell> make_cells(const Sweep& sweep, int64_t seeds, const std::filesystem::path& root,
                             const std::vector<std::string>& settings);

/// The second table as a sweep of its own, with one row per evaluation, and its cells: those of the
/// evaluated rows with the evaluation's settings applied.
Sweep evaluation_sweep(const Sweep& sweep);
std::vector<Cell> evaluation_cells(const Sweep& sweep, const std::vector<Cell>& cells);

/// The final score of each cell's run; null if it is incomplete.
std::vector<nlohmann::json> read_results(const std::vector<Cell>& cells);

/// Mean and sample standard deviation (0 with one value).
struct Summary {
  int64_t count = 0;
  double mean = 0, deviation = 0;
};
Summary summarize(const std::vector<double>& values);

/// The accuracies so far, in percent, of every (row, column), by seed.
using AccuracyTable = std::vector<std::vector<std::vector<double>>>;
AccuracyTable collect(const Sweep& sweep, const std::vector<Cell>& cells,
                      const std::vector<nlohmann::json>& results);

/// The table as JSON: for each row and column the accuracies by seed, mean, deviation and the
/// paper's figure, the final score of every run, and the first row's config for each task.
nlohmann::json to_json(const Sweep& sweep, const std::vector<Cell>& cells,
                       const std::vector<nlohmann::json>& results);

/// The table as text, with the paper's figures in parentheses.
std::string to_text(const Sweep& sweep, const AccuracyTable& table);

}  // namespace hopmix::train
