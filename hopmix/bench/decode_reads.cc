#include "hopmix/bench/decode_reads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <deque>

#include "hopmix/base/status_line.h"
#include "hopmix/base/text_table.h"
#include "hopmix/bench/interleave.h"
#include "hopmix/bench/statistics.h"
#include "hopmix/kernels/base/load_bandwidth.h"
#include "hopmix/nn/model.h"
#include "hopmix/ops/ops.h"

namespace hopmix::bench {
namespace {

constexpr int kRepetitions = 15;
constexpr int64_t kLayers = 4, kWidth = 256, kHeads = 4, kVocabulary = 256;

int64_t bytes_of(const std::vector<torch::Tensor>& tensors) {
  int64_t total = 0;
  for (const torch::Tensor& t : tensors) total += t.numel() * t.element_size();
  return total;
}

void read_all(const std::vector<torch::Tensor>& tensors) {
  volatile float kept = 0;  // keeps the loads from being removed
  for (const torch::Tensor& t : tensors) {
    kept = kernels::sum_in_order(t.const_data_ptr<float>(), t.numel());
  }
  static_cast<void>(kept);
}

void rewrite_all(const std::vector<torch::Tensor>& tensors) {
  for (const torch::Tensor& t : tensors) {
    kernels::scale_in_order(t.mutable_data_ptr<float>(), t.numel(), 1);
  }
}

struct Step {
  std::string name;
  std::vector<torch::Tensor> reads;
  std::function<void()> run;
};

// Times each step, then reads of separate memory of the same size, so that neither warms the cache
// for the other.
std::vector<ReadResult> measure_steps(const std::deque<Step>& steps, const Settings& settings,
                                      const Hooks& hooks) {
  std::deque<std::vector<torch::Tensor>> copies;
  std::vector<Work> works;
  const int repetitions = settings.repetitions.value_or(kRepetitions);
  for (const Step& step : steps) {
    std::vector<torch::Tensor>& copy = copies.emplace_back();
    for (const torch::Tensor& t : step.reads) copy.push_back(t.detach().clone());
    works.push_back({.run = step.run, .repetitions = repetitions});
    works.push_back({.run = [&copy] { read_all(copy); }, .repetitions = repetitions});
    works.push_back({.run = [&copy] { rewrite_all(copy); }, .repetitions = repetitions});
  }
  const auto times = time_interleaved(
      works, {.wall = settings.threads > 1, .stop = hooks.stop, .report = [&](double part) {
                if (!hooks.report) return;
                hooks.report(steps.front().name + " and others, " +
                             std::to_string(static_cast<int>(100 * part)) + "%");
              }});
  std::vector<ReadResult> results;
  if (hooks.stop && hooks.stop()) return results;
  for (size_t i = 0; i < steps.size(); ++i) {
    results.push_back({.name = steps[i].name,
                       .bytes = bytes_of(steps[i].reads),
                       .seconds = median(times[3 * i]),
                       .read = median(times[3 * i + 1]),
                       .rewritten = median(times[3 * i + 2])});
  }
  return results;
}

// A model with the mixers of `which`, the last one repeated to make kLayers layers.
std::shared_ptr<nn::LanguageModel> make_model(const DecodeCase& which) {
  const toml::table given = config::parse("blocks = " + which.blocks, which.name);
  const toml::array& mixers = *given["blocks"].as_array();
  toml::array blocks;
  for (size_t i = 0; i < kLayers; ++i) {
    blocks.push_back(*mixers[std::min(i, mixers.size() - 1)].as_table());
  }
  toml::table document{
      {"width", kWidth}, {"heads", kHeads}, {"positions", "rope"}, {"blocks", blocks}};
  config::Table table(document, which.name);
  return nn::make_model(table, {.vocabulary = kVocabulary, .length = 1024});
}

}  // namespace

std::vector<ReadResult> measure_matrix_steps(const Settings& settings, const Hooks& hooks) {
  at::set_num_threads(settings.threads);
  std::deque<Step> steps;  // a deque, so that addresses stay valid
  for (const auto& [heads, width] : {std::pair<int64_t, int64_t>{4, 64}, {32, 128}}) {
    const torch::Tensor q = torch::randn({1, heads, width}), k = torch::randn({1, heads, width}),
                        v = torch::randn({1, heads, width});
    const torch::Tensor of_heads = -torch::rand({1, heads}), beta = torch::rand({1, heads});
    const torch::Tensor of_channels = -torch::rand({1, heads, width});
    const torch::Tensor unit = k / k.norm(2, -1, /*keepdim=*/true);
    struct Form {
      const char* name;
      std::optional<torch::Tensor> log_decay, beta;
    };
    for (const Form& form : {Form{"linear_attention", {}, {}},
                             {"ssd", of_heads, {}},
                             {"gla", of_channels, {}},
                             {"delta_rule", {}, beta},
                             {"gated_delta_rule", of_heads, beta},
                             {"kda", of_channels, beta}}) {
      const torch::Tensor state = torch::randn({1, heads, width, width});
      steps.push_back({.name = std::string(form.name) + ", " + std::to_string(heads) +
                               " heads of " + std::to_string(width),
                       .reads = {state},
                       .run = [=] {
                         const torch::NoGradGuard no_grad;
                         ops::matrix_step_(q, unit, v, form.log_decay, form.beta, state);
                       }});
    }
  }
  return measure_steps(steps, settings, hooks);
}

std::vector<ReadResult> measure_model_steps(const std::vector<DecodeCase>& cases, int64_t length,
                                            const Settings& settings, const Hooks& hooks) {
  at::set_num_threads(settings.threads);
  const torch::NoGradGuard no_grad;
  struct Run {
    std::shared_ptr<nn::LanguageModel> model;
    nn::ModelState begin, state;
    int64_t taken = 0;
  };
  std::deque<Run> runs;
  std::deque<Step> steps;
  const torch::Tensor prompt = torch::randint(kVocabulary, {1, length}),
                      token = prompt.select(1, 0);
  for (const DecodeCase& one : cases) {
    if (hooks.stop && hooks.stop()) return {};
    if (hooks.report) hooks.report(one.name + ", reading the prompt");
    Run& run = runs.emplace_back();
    run.model = make_model(one);
    run.begin = run.model->initial_state(1);
    run.model->prefill(prompt, run.begin);
    run.state = run.begin;
    Step step{.name = one.name, .reads = {}, .run = [&run, token, length] {
                const torch::NoGradGuard decoding;
                if (++run.taken % length == 0) run.state = run.begin;  // stays near this length
                run.model->step(token, run.state);
              }};
    for (const auto& weight : run.model->named_parameters()) {
      if (weight.key() != "embedding") step.reads.push_back(weight.value());
    }
    for (const nn::State& state : run.begin.blocks) {
      for (const auto& [name, t] : state.tensors) {
        if (t.scalar_type() == torch::kFloat) step.reads.push_back(t);
      }
    }
    steps.push_back(step);
  }
  return measure_steps(steps, settings, hooks);
}

std::string read_table(const std::vector<ReadResult>& results, const std::string& title) {
  if (results.empty()) return "";
  std::vector<std::vector<std::string>> rows;
  for (const ReadResult& result : results) {
    rows.push_back({result.name, format_count(static_cast<double>(result.bytes)),
                    fixed(1e6 * result.seconds, 1), fixed(1e6 * result.read, 1),
                    fixed(result.over_read(), 2), fixed(result.over_rewritten(), 2)});
  }
  return text_table(
             {title, "bytes", "us per step", "us per read", "step / read", "step / read and write"},
             rows) +
         "\n";
}

nlohmann::ordered_json to_json(const std::vector<ReadResult>& results) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ReadResult& result : results) {
    list.push_back({{"case", result.name},
                    {"bytes", result.bytes},
                    {"seconds", result.seconds},
                    {"read_seconds", result.read},
                    {"rewritten_seconds", result.rewritten},
                    {"over_read", result.over_read()},
                    {"over_rewritten", result.over_rewritten()}});
  }
  return list;
}

}  // namespace hopmix::bench
