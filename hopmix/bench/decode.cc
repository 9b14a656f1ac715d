#include "hopmix/bench/decode.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <sstream>

#include "hopmix/analysis/gnuplot.h"
#include "hopmix/base/status_line.h"
#include "hopmix/base/text_table.h"
#include "hopmix/bench/interleave.h"
#include "hopmix/bench/statistics.h"
#include "hopmix/nn/pattern_cache.h"
#include "hopmix/nn/registry.h"

namespace hopmix::bench {
namespace {

constexpr int kRepetitions = 15, kPromptRepetitions = 5;
constexpr int64_t kStepsAway = 256;
constexpr int kPanelWidth = 760, kPanelHeight = 460;

using Value = double (*)(const DecodeResult&);

// Residual layers at a given position of a stream.
class Decoder {
 public:
  Decoder(const DecodeCase& which, const DecodeShape& shape, int64_t length)
      : x_(torch::randn({1, shape.heads * shape.width})), length_(length), bounded_(which.bounded) {
    toml::table document = config::parse("blocks = " + which.blocks, which.name);
    config::Table table(document);
    const nn::BlockDefaults defaults{.width = shape.heads * shape.width,
                                     .heads = shape.heads,
                                     .length = 1024,
                                     .mem = std::make_shared<nn::Publications>()};
    std::vector<nn::MixerPlan> plans;
    for (config::Table& block : table.tables("blocks")) {
      plans.push_back(nn::read_mixer(block, defaults));
      block.finish();
    }
    for (const nn::MixerPlan& plan : plans) mixers_.push_back(plan.build());
    begin();
    for (nn::State& state : states_) {
      state.position = length;
      if (which.pattern.empty()) continue;
      nn::PatternCache(Pattern(which.pattern, 1), {}).fill(state, length);
    }
    if (bounded_) filled_ = states_;
  }

  // Takes a step but stays near the same length, which thousands of steps would otherwise change.
  void step() {
    if (!bounded_) {
      for (nn::State& state : states_) state.position = length_;  // overwrites the last step's slot
    } else if (++steps_ % kStepsAway == 0) {
      states_ = filled_;
    }
    step(x_);
  }

  // Reads tokens [1,T,width] from an empty state.
  void take_in(const torch::Tensor& tokens, bool at_once) {
    begin();
    const bool shares = std::any_of(mixers_.begin(), mixers_.end(),
                                    [](const auto& mixer) { return mixer->shares_cache(); });
    if (!at_once || shares) {
      for (int64_t t = 0; t < tokens.size(1); ++t) step(tokens.select(1, t));
      return;
    }
    const torch::NoGradGuard no_grad;
    nn::Context context;
    torch::Tensor x = tokens;
    for (size_t i = 0; i < mixers_.size(); ++i) {
      x = x + mixers_[i]->prefill(x, states_[i], context);
    }
  }

  int64_t bytes() const {  // of all states
    int64_t total = 0;
    for (const nn::State& state : states_) total += state.bytes();
    return total;
  }

 private:
  void begin() {
    states_.clear();
    for (const auto& mixer : mixers_) states_.push_back(mixer->initial_state(1));
  }

  void step(torch::Tensor x) {
    const torch::NoGradGuard no_grad;
    nn::Context context;
    for (size_t i = 0; i < mixers_.size(); ++i) x = x + mixers_[i]->step(x, states_[i], context);
  }

  torch::Tensor x_;
  std::vector<std::shared_ptr<nn::Mixer>> mixers_;
  std::vector<nn::State> states_, filled_;
  int64_t length_, steps_ = 0;
  bool bounded_;
};

const DecodeResult* find(const std::vector<DecodeResult>& results, const std::string& name,
                         int64_t length) {
  for (const DecodeResult& result : results) {
    if (result.name == name && result.length == length) return &result;
  }
  return nullptr;
}

// The ratio of full attention's value to this one.
std::optional<double> of_attention(const std::vector<DecodeResult>& results,
                                   const DecodeResult& result, Value value) {
  const DecodeResult* attention = find(results, kFullAttention, result.length);
  if (attention == nullptr || &result == attention) return {};
  return value(*attention) / value(result);
}

double microseconds(const DecodeResult& result) { return 1e6 * result.seconds; }
double bytes(const DecodeResult& result) { return static_cast<double>(result.state_bytes); }

std::vector<std::string> names_of(const std::vector<DecodeResult>& results) {
  std::vector<std::string> names;
  for (const DecodeResult& result : results) {
    if (std::find(names.begin(), names.end(), result.name) == names.end()) {
      names.push_back(result.name);
    }
  }
  return names;
}

std::set<int64_t> lengths_of(const std::vector<DecodeResult>& results) {
  std::set<int64_t> lengths;
  for (const DecodeResult& result : results) lengths.insert(result.length);
  return lengths;
}

// The last column is the ratio of the value at the longest length to that at the shortest.
std::string table_of(const std::vector<DecodeResult>& results, const std::string& title,
                     Value value, std::string (*text)(double)) {
  const std::set<int64_t> lengths = lengths_of(results);
  std::vector<std::string> head = {title};
  for (const int64_t length : lengths) head.push_back(std::to_string(length));
  head.insert(head.end(), {"last / first", "attention / this"});
  std::vector<std::vector<std::string>> rows;
  for (const std::string& name : names_of(results)) {
    std::vector<std::string> row = {name};
    const DecodeResult *first = nullptr, *last = nullptr;
    std::string ratio;
    for (const int64_t length : lengths) {
      const DecodeResult* at = find(results, name, length);
      row.push_back(at ? text(value(*at)) : "");
      if (at == nullptr) continue;
      if (first == nullptr) first = at;
      last = at;
      if (const auto times = of_attention(results, *at, value)) {
        ratio = fixed(*times, 1) + " at " + std::to_string(length);
      }
    }
    row.push_back(fixed(value(*last) / value(*first), 2));
    row.push_back(ratio);
    rows.push_back(std::move(row));
  }
  return text_table(head, rows) + "\n";
}

}  // namespace

std::vector<DecodeCase> decode_cases() {
  std::vector<DecodeCase> cases = {
      {kFullAttention, "[{mixer = 'attention'}]", "dense", false},
      {"local_attention 64", "[{mixer = 'local_attention', window = 64}]", "window(63)"}};
  for (const std::string f : {"2^k", "k^2+1"}) {
    for (const std::string& pattern : {f, "cached(" + f + ")"}) {
      cases.push_back({"glr " + pattern, "[{mixer = 'glr', pattern = '" + pattern + "'}]", pattern,
                       pattern != f});
    }
  }
  cases.push_back({"gated_deltanet", "[{mixer = 'gated_deltanet'}]"});
  cases.push_back({"attention, mura",
                   "[{mixer = 'attention', mem = 'm'}, {mixer = 'mura', mem = 'm'}]", "dense",
                   false});
  return cases;
}

std::vector<DecodeResult> measure_decoding(const std::vector<DecodeCase>& cases,
                                           const DecodeShape& shape, const Settings& settings,
                                           const Hooks& hooks) {
  at::set_num_threads(settings.threads);
  const auto say = [&](const std::string& what) {
    if (hooks.report) hooks.report(what);
  };
  std::deque<Decoder> decoders;  // a deque, so that addresses stay valid
  std::vector<DecodeResult> results;
  std::vector<Work> works;
  for (const DecodeCase& one : cases) {
    for (const int64_t length : shape.lengths) {
      if (hooks.stop && hooks.stop()) return {};
      if (!one.bounded && length > kLongestFull) continue;  // would take gigabytes
      say(one.name + ", " + std::to_string(length) + " tokens of context");
      Decoder& decoder = decoders.emplace_back(one, shape, length);
      results.push_back({.name = one.name, .length = length, .state_bytes = decoder.bytes()});
      decoder.step();  // the first step may have to allocate
      works.push_back({.run = [&decoder] { decoder.step(); },
                       .repetitions = settings.repetitions.value_or(kRepetitions)});
    }
  }
  const auto times = time_interleaved(
      works, {.wall = settings.threads > 1, .stop = hooks.stop, .report = [&](double part) {
                say(std::to_string(static_cast<int>(100 * part)) + "% of repetitions");
              }});
  if (hooks.stop && hooks.stop()) return {};
  for (size_t i = 0; i < results.size(); ++i) {
    results[i].times = times[i];
    results[i].seconds = median(times[i]);
  }
  return results;
}

std::vector<PromptResult> measure_prompts(const std::vector<DecodeCase>& cases,
                                          const DecodeShape& shape, int64_t length,
                                          const Settings& settings, const Hooks& hooks) {
  at::set_num_threads(settings.threads);
  const torch::Tensor tokens = torch::randn({1, length, shape.heads * shape.width});
  std::deque<Decoder> decoders;  // a deque, so that addresses stay valid
  std::vector<Work> works;
  for (const DecodeCase& one : cases) {
    Decoder& decoder = decoders.emplace_back(one, shape, 0);
    for (const bool at_once : {true, false}) {
      works.push_back({.run = [&decoder, &tokens, at_once] { decoder.take_in(tokens, at_once); },
                       .repetitions = std::min(settings.repetitions.value_or(kPromptRepetitions),
                                               kPromptRepetitions),
                       .once = true});
    }
  }
  const auto times = time_interleaved(
      works, {.wall = settings.threads > 1, .stop = hooks.stop, .report = [&](double part) {
                if (!hooks.report) return;
                hooks.report("prompts, " + std::to_string(static_cast<int>(100 * part)) + "%");
              }});
  if (hooks.stop && hooks.stop()) return {};
  std::vector<PromptResult> results;
  const auto a_token = static_cast<double>(length);
  for (size_t i = 0; i < cases.size(); ++i) {
    results.push_back({.name = cases[i].name,
                       .length = length,
                       .prefill = median(times[2 * i]) / a_token,
                       .steps = median(times[2 * i + 1]) / a_token});
  }
  return results;
}

std::string prompt_table(const std::vector<PromptResult>& results) {
  if (results.empty()) return "";
  std::vector<std::vector<std::string>> rows;
  for (const PromptResult& result : results) {
    rows.push_back({result.name, fixed(1e6 * result.prefill, 1), fixed(1e6 * result.steps, 1),
                    fixed(result.faster(), 1)});
  }
  const std::string title =
      "microseconds per token of a prompt of " + std::to_string(results.front().length);
  return text_table({title, "at once", "token by token", "ratio"}, rows) + "\n";
}

nlohmann::ordered_json to_json(const std::vector<PromptResult>& results) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const PromptResult& result : results) {
    list.push_back({{"case", result.name},
                    {"length", result.length},
                    {"prefill_seconds", result.prefill},
                    {"step_seconds", result.steps},
                    {"faster", result.faster()}});
  }
  return list;
}

std::string decode_tables(const std::vector<DecodeResult>& results) {
  if (results.empty()) return "";
  return table_of(results, "microseconds per token", microseconds,
                  [](double value) { return fixed(value, 1); }) +
         table_of(results, "bytes of state", bytes,
                  [](double value) { return format_count(value); });
}

nlohmann::ordered_json to_json(const std::vector<DecodeResult>& results) {
  const auto number = [](std::optional<double> value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const DecodeResult& result : results) {
    list.push_back({{"case", result.name},
                    {"length", result.length},
                    {"seconds", result.seconds},
                    {"times", result.times},
                    {"tokens_per_second", 1 / result.seconds},
                    {"state_bytes", result.state_bytes},
                    {"faster", number(of_attention(results, result, microseconds))},
                    {"smaller", number(of_attention(results, result, bytes))}});
  }
  return list;
}

void plot_decoding(const std::vector<DecodeResult>& results, const std::filesystem::path& output) {
  std::ostringstream script, panels;
  script << "set logscale xy\nset logscale x 2\nset xlabel 'tokens of context'\n"
         << "set grid lc rgb '#e0e0e0'\nset border 3\nset tics nomirror\n"
         << "set key outside right top samplen 2\nset format x '%.0f'\nset xtics rotate by -45\n";
  const std::vector<std::string> names = names_of(results);
  for (const auto& [label, value] :
       {std::pair<const char*, Value>("microseconds per token", microseconds),
        std::pair<const char*, Value>("bytes of state", bytes)}) {
    panels << "set ylabel '" << label << "'\nplot ";
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string block =
          std::string(value == microseconds ? "$time" : "$bytes") + std::to_string(i);
      script << block << " << EOD\n";
      for (const DecodeResult& result : results) {
        if (result.name == names[i]) script << result.length << " " << value(result) << "\n";
      }
      script << "EOD\n";
      panels << (i > 0 ? ", " : "") << block << " with linespoints lw 2 ps 0.7 lt " << i + 1
             << " title " << gnuplot_string(names[i]) << " noenhanced";
    }
    panels << "\n";
  }
  plot(script.str() + "set multiplot layout 1,2\n" + panels.str() + "unset multiplot\n", output,
       2 * kPanelWidth, kPanelHeight);
}

}  // namespace hopmix::bench
