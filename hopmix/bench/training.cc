#include "hopmix/bench/training.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <deque>

#include "hopmix/base/status_line.h"
#include "hopmix/base/text_table.h"
#include "hopmix/bench/interleave.h"
#include "hopmix/train/train.h"

namespace hopmix::bench {
namespace {

constexpr int kRepetitions = 15, kWarmUp = 3;
constexpr size_t kShown = 8;  // operators shown per case
const std::vector<std::string> kPhases = {"data", "forward", "backward", "clip", "optimizer"};

// One model in training.
struct Run {
  std::string name;
  train::Experiment experiment;
  std::unique_ptr<torch::optim::AdamW> optimizer;
  int64_t step = 0;

  explicit Run(const TrainingCase& from)
      : name(from.name),
        experiment(train::make_experiment(from.config)),
        optimizer(train::make_optimizer(*experiment.model, experiment.train)) {}

  void advance() {
    train::train_step(experiment, *optimizer, step % experiment.train.steps);
    ++step;
  }
};

// The profile of one step: the mean over `steps`.
std::map<std::string, Phase> profile_step(Run& run, int steps) {
  auto phases = profile([&] {
    for (int i = 0; i < steps; ++i) run.advance();
  });
  phases.erase("");
  for (auto& [name, phase] : phases) {
    phase.seconds /= steps;
    for (auto& [op, seconds] : phase.operators) seconds /= steps;
  }
  return phases;
}

std::string milliseconds(double seconds) { return fixed(1e3 * seconds, 2) + " ms"; }

double profiled_seconds(const TrainingResult& result) {
  double sum = 0;
  for (const auto& [name, phase] : result.phases) sum += phase.seconds;
  return sum;
}

struct Share {
  std::string phase, op;
  double seconds = 0;
};

std::vector<Share> largest_shares(const TrainingResult& result) {
  std::vector<Share> shares;
  for (const auto& [phase, found] : result.phases) {
    for (const auto& [op, seconds] : found.operators) {
      shares.push_back({phase, op.empty() ? "(outside operators)" : op, seconds});
    }
  }
  std::sort(shares.begin(), shares.end(),
            [](const Share& a, const Share& b) { return a.seconds > b.seconds; });
  shares.resize(std::min(shares.size(), kShown));
  return shares;
}

}  // namespace

std::vector<TrainingResult> measure_training(const std::vector<TrainingCase>& cases,
                                             const Settings& settings, const Hooks& hooks) {
  at::set_num_threads(settings.threads);
  const bool wall = settings.threads > 1;
  const int repetitions = settings.repetitions.value_or(kRepetitions);
  const auto say = [&](const std::string& what) {
    if (hooks.report) hooks.report(what);
  };
  std::deque<Run> runs;  // a deque, so that addresses stay valid
  for (const TrainingCase& one : cases) runs.emplace_back(one);
  std::vector<Work> works;
  for (Run& run : runs) {
    for (int i = 0; i < kWarmUp; ++i) run.advance();
    works.push_back({.run = [&run] { run.advance(); }, .repetitions = repetitions});
  }
  const auto times = time_interleaved(
      works, {.wall = wall, .stop = hooks.stop, .report = [&](double part) {
                say(std::to_string(static_cast<int>(100 * part)) + "% of repetitions");
              }});
  std::vector<TrainingResult> results;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (hooks.stop && hooks.stop()) return {};
    say(runs[i].name + ", profile");
    train::Experiment& experiment = runs[i].experiment;
    TrainingResult result;
    result.name = runs[i].name;
    result.task = experiment.task.name;
    result.parameters = experiment.model->parameter_count();
    result.batch = experiment.train.batch;
    result.length = experiment.task.length;
    result.times = times[i];
    result.seconds = median(times[i]);
    result.phases = profile_step(runs[i], repetitions);
    experiment.train.eval_batches = 1;
    const auto evaluations = time_interleaved(
        {{.run = [&] { train::evaluate(experiment); }, .repetitions = std::min(repetitions, 3)}},
        {.wall = wall});
    result.evaluation = median(evaluations[0]);
    results.push_back(std::move(result));
  }
  return results;
}

std::string training_tables(const std::vector<TrainingResult>& results) {
  if (results.empty()) return "";
  std::vector<std::vector<std::string>> rows;
  for (const TrainingResult& result : results) {
    std::vector<std::string> row = {result.name, fixed(result.steps_per_second(), 1),
                                    format_count(result.tokens_per_second()),
                                    milliseconds(result.seconds)};
    for (const std::string& name : kPhases) {
      const auto found = result.phases.find(name);
      const double part =
          found == result.phases.end() ? 0 : found->second.seconds / profiled_seconds(result);
      row.push_back(fixed(100 * part, 1) + "%");
    }
    row.push_back(milliseconds(result.evaluation));
    rows.push_back(std::move(row));
  }
  std::vector<std::string> head = {"training step", "steps/s", "tokens/s", "median"};
  head.insert(head.end(), kPhases.begin(), kPhases.end());
  head.push_back("evaluating a batch");
  std::string text = text_table(head, rows);

  rows.clear();
  for (const TrainingResult& result : results) {
    bool first = true;
    for (const Share& share : largest_shares(result)) {
      rows.push_back({first ? result.name : "", share.phase, share.op, milliseconds(share.seconds),
                      fixed(100 * share.seconds / profiled_seconds(result), 1) + "%"});
      first = false;
    }
  }
  return text + "\n" +
         text_table({"where it goes", "phase", "operator (self time)", "per step", ""}, rows,
                    {true, true, true}) +
         "\n";
}

nlohmann::ordered_json to_json(const TrainingResult& result) {
  nlohmann::ordered_json phases = nlohmann::ordered_json::object();
  for (const auto& [name, phase] : result.phases) {
    phases[name] = {{"seconds", phase.seconds}, {"operators", phase.operators}};
  }
  return {{"case", result.name},
          {"task", result.task},
          {"parameters", result.parameters},
          {"batch", result.batch},
          {"length", result.length},
          {"seconds", result.seconds},
          {"times", result.times},
          {"steps_per_second", result.steps_per_second()},
          {"tokens_per_second", result.tokens_per_second()},
          {"evaluation_seconds", result.evaluation},
          {"phases", phases}};
}

}  // namespace hopmix::bench
