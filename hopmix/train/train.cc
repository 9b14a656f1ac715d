#include "hopmix/train/train.h"

#include <ATen/autocast_mode.h>

#include <sstream>

#include "hopmix/base/files.h"
#include "hopmix/train/checkpoint.h"
#include "hopmix/train/interrupt.h"
#include "hopmix/train/metrics.h"
#include "hopmix/train/optimizer.h"
#include "hopmix/train/progress.h"

namespace hopmix::train {
namespace {

using std::filesystem::path;

// bfloat16 matrix products while it lives, if `on`.
class Autocast {
 public:
  explicit Autocast(bool on) : on_(on) {
    if (!on_) return;
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (!on_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool on_;
};

torch::Tensor run_model(const Experiment& e, const torch::Tensor& tokens) {
  const Autocast autocast(e.train.precision == "bfloat16");
  return e.model->forward(tokens);
}

// Every value below `node`, by its dotted name; elements of arrays are numbered, as in --set.
void flatten(const toml::node& node, const std::string& name,
             std::map<std::string, std::string>& out) {
  const std::string prefix = name.empty() ? "" : name + ".";
  if (const toml::table* table = node.as_table()) {
    for (const auto& [key, value] : *table) flatten(value, prefix + std::string(key.str()), out);
  } else if (const toml::array* array = node.as_array()) {
    for (size_t i = 0; i < array->size(); ++i) {
      flatten((*array)[i], prefix + std::to_string(i), out);
    }
  } else {
    std::ostringstream text;
    node.visit([&](const auto& value) { text << value; });
    out[name] = text.str();
  }
}

// Whether `run` is as good as absent: a kill while its first file was written left it so.
bool is_new(const path& run) {
  if (!std::filesystem::exists(run)) return true;
  if (!std::filesystem::is_directory(run)) return false;
  for (const auto& entry : std::filesystem::directory_iterator(run)) {
    if (entry.path().filename() != "config.toml.tmp") return false;
  }
  return true;
}

// Makes the run directory, or checks that the one there is of this experiment.
void open_run(const path& run, const Experiment& e, bool resume) {
  const path config = run / "config.toml";
  if (is_new(run)) {
    std::error_code error;
    std::filesystem::create_directories(run, error);
    if (error) throw Error("cannot make '" + run.string() + "': " + error.message());
    write_file(config, config::to_string(e.config));
    return;
  }
  if (!resume) {
    throw Error("'" + run.string() +
                "' exists: --resume goes on with it, --out DIR trains elsewhere");
  }
  const std::string difference =
      first_difference(config::parse_file(config), e.config, config.string(), "this config");
  if (!difference.empty()) throw Error("cannot resume, the config differs: " + difference);
}

std::string percent(double value) {
  char text[16];
  std::snprintf(text, sizeof text, "%.1f%%", value);
  return text;
}

}  // namespace

std::string first_difference(const toml::table& a, const toml::table& b, const std::string& name_a,
                             const std::string& name_b) {
  std::map<std::string, std::string> left, right;
  flatten(a, "", left);
  flatten(b, "", right);
  for (const auto* side : {&left, &right}) {
    for (const auto& item : *side) {
      const auto show = [&](const std::map<std::string, std::string>& values) {
        const auto found = values.find(item.first);
        return found == values.end() ? std::string("absent") : found->second;
      };
      if (show(left) != show(right)) {
        return item.first + ": " + show(left) + " in " + name_a + ", " + show(right) + " in " +
               name_b;
      }
    }
  }
  return "";
}

Score evaluate(Experiment& e) {
  const torch::NoGradGuard no_grad;
  Score score;
  for (int64_t i = 0; i < e.train.eval_batches; ++i) {
    const tasks::Batch batch = e.task.sample(e.train.batch, batch_seed(e.seed, "eval", i));
    add_batch(run_model(e, batch.tokens), batch, score);
  }
  return score;
}

nlohmann::json to_json(const Score& score, const std::string& slice_name) {
  nlohmann::json json = {
      {"loss", score.loss()}, {"accuracy", score.all.percent()}, {"asked", score.all.asked}};
  for (const auto& [slice, count] : score.slices) {
    json["slices"][slice_name + " " + std::to_string(slice)] = count.percent();
  }
  return json;
}

nlohmann::json final_score(const path& run) {
  const path file = run / "metrics.jsonl";
  if (!std::filesystem::exists(file)) return nullptr;
  std::istringstream lines(read_file(file));
  nlohmann::json last;
  for (std::string line; std::getline(lines, line);) {
    last = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  }
  return last.is_object() && last.contains("eval") ? last["eval"] : nlohmann::json(nullptr);
}

TrainResult train(Experiment& e, const path& run, bool resume, bool quiet) {
  open_run(run, e, resume);
  if (e.threads > 0) at::set_num_threads(static_cast<int>(e.threads));
  const auto optimizer = make_optimizer(*e.model, e.train);
  const bool has_checkpoint = std::filesystem::exists(run / "state.json");
  TrainResult result;
  result.step = has_checkpoint ? load_checkpoint(run, *e.model, *optimizer) : 0;

  MetricsFile metrics(run / "metrics.jsonl", result.step);
  const InterruptGuard interrupt;
  Progress progress(quiet, result.step, e.train.steps);
  const std::vector<torch::Tensor> parameters = e.model->parameters();
  while (result.step < e.train.steps && !result.interrupted) {
    const double lr = learning_rate(e.train, result.step);
    set_learning_rate(*optimizer, lr);
    const tasks::Batch batch =
        e.task.sample(e.train.batch, batch_seed(e.seed, "train", result.step));
    const torch::Tensor logits = run_model(e, batch.tokens);
    const torch::Tensor loss = cross_entropy(logits, batch.targets);
    optimizer->zero_grad();
    loss.backward();
    const double limit = e.train.clip > 0 ? e.train.clip : std::numeric_limits<double>::infinity();
    const double norm = torch::nn::utils::clip_grad_norm_(parameters, limit);
    if (!std::isfinite(norm)) {
      throw Error("step " + std::to_string(result.step) + ": the gradient is not finite (loss " +
                  std::to_string(loss.item<double>()) + "); lower train.lr, or train.clip");
    }
    optimizer->step();
    ++result.step;

    const bool last = result.step == e.train.steps;
    if (result.step % e.train.log_every == 0 || last) {
      Score score;
      add_batch(logits.detach(), batch, score);
      metrics.write({{"step", result.step},
                     {"loss", loss.item<double>()},
                     {"accuracy", score.all.percent()},
                     {"lr", lr},
                     {"grad_norm", norm},
                     {"seconds", progress.seconds()}});
      char note[64];
      std::snprintf(note, sizeof note, "loss %.3f  accuracy %s", loss.item<double>(),
                    percent(score.all.percent()).c_str());
      progress.update(result.step, note, batch.tokens.numel());
    }
    result.interrupted = interrupt.interrupted();
    if (result.step % e.train.checkpoint_every == 0 || last || result.interrupted) {
      save_checkpoint(run, *e.model, *optimizer, result.step);
    }
  }
  result.seconds = progress.seconds();
  if (!result.interrupted) {
    result.score = evaluate(e);
    metrics.write({{"step", result.step},
                   {"seconds", result.seconds},
                   {"eval", to_json(result.score, e.task.slice_name)}});
  }
  return result;
}

}  // namespace hopmix::train
