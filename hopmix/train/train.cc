#include "hopmix/train/train.h"

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>

#include <cmath>
#include <limits>

#include "hopmix/base/status_line.h"
#include "hopmix/train/checkpoint.h"
#include "hopmix/train/interrupt.h"
#include "hopmix/train/metrics.h"
#include "hopmix/train/optimizer.h"
#include "hopmix/train/run_directory.h"

namespace hopmix::train {
namespace {

using std::filesystem::path;

// Enables bfloat16 matrix products during its lifetime, if `on`.
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

nn::Scored run_model(const Experiment& e, const tasks::Batch& batch, const torch::Tensor& rows) {
  const Autocast autocast(e.train.precision == "bfloat16");
  return e.model->loss_at(batch.tokens, rows, asked_targets(batch, rows), row_weights(batch, rows),
                          batch.cu_seqlens);
}

// "step 120/500  loss 0.532  accuracy 71.2%  35.1k tokens/s  0:12 left"
std::string describe(int64_t step, int64_t first, int64_t steps, double loss, double accuracy,
                     double tokens, double seconds) {
  const double done = static_cast<double>(step - first), left = static_cast<double>(steps - step);
  char text[160];
  std::snprintf(text, sizeof text,
                "step %lld/%lld  loss %.3f  accuracy %.1f%%  %s tokens/s  %s left",
                static_cast<long long>(step), static_cast<long long>(steps), loss, accuracy,
                format_count(done * tokens / seconds).c_str(),
                format_duration(seconds / done * left).c_str());
  return text;
}

}  // namespace

int64_t load_run(const path& run, Experiment& e) {
  check_files(run, e.task.files);
  check_inputs(run, e.inputs);
  return load_weights(run, *e.model);
}

StepResult train_step(Experiment& e, torch::optim::AdamW& optimizer, int64_t step) {
  StepResult result;
  result.lr = learning_rate(e.train, step);
  set_learning_rate(optimizer, result.lr);
  {
    RECORD_USER_SCOPE("data");
    result.batch = e.task.sample(e.train.batch, batch_seed(e.seed, "train", step));
  }
  {
    RECORD_USER_SCOPE("forward");
    result.rows = asked_rows(result.batch);
    result.scored = run_model(e, result.batch, result.rows);
  }
  {
    RECORD_USER_SCOPE("backward");
    optimizer.zero_grad();
    result.scored.loss.backward();
  }
  {
    RECORD_USER_SCOPE("clip");
    const double limit = e.train.clip > 0 ? e.train.clip : std::numeric_limits<double>::infinity();
    result.grad_norm = clip_gradients(optimizer, limit);
  }
  if (!std::isfinite(result.grad_norm)) {
    throw Error("step " + std::to_string(step) + ": the gradient is not finite (loss " +
                std::to_string(result.scored.loss.item<double>()) +
                "); lower train.lr, or train.clip");
  }
  {
    RECORD_USER_SCOPE("optimizer");
    take_step(optimizer);
  }
  return result;
}

Score evaluate(Experiment& e) {
  const torch::NoGradGuard no_grad;
  const auto& sample = e.task.sample_held_out ? e.task.sample_held_out : e.task.sample;
  Score score;
  for (int64_t i = 0; i < e.train.eval_batches; ++i) {
    const tasks::Batch batch = sample(e.train.batch, batch_seed(e.seed, "eval", i));
    const torch::Tensor rows = asked_rows(batch);
    add_batch(run_model(e, batch, rows), batch, rows, score);
  }
  if (!std::isfinite(score.loss_sum)) {
    throw Error("the loss is not finite (" + std::to_string(score.loss()) +
                "): the model's weights are too large");
  }
  score.bytes = static_cast<double>(score.all.asked) * e.task.bytes_per_token;
  return score;
}

nlohmann::json to_json(const Score& score, const std::string& slice_name) {
  nlohmann::json json = {
      {"loss", score.loss()}, {"accuracy", score.all.percent()}, {"asked", score.all.asked}};
  if (score.bytes > 0) json["bits_per_byte"] = score.bits_per_byte();
  for (const auto& [slice, count] : score.slices) {
    json["slices"][slice_name + " " + std::to_string(slice)] = count.percent();
  }
  return json;
}

TrainResult train(Experiment& e, const path& run, bool resume, bool quiet) {
  e.model->check_length(e.task.length);  // before the directory is made
  const RunLock lock = open_run(run, e.config, resume, e.task.files);
  try {
    keep_files(run, e.task.files);
    keep_inputs(run, e.inputs);
  } catch (const Error& error) {
    throw Error(std::string("cannot resume, ") + error.what());
  }
  if (e.threads > 0) at::set_num_threads(static_cast<int>(e.threads));
  const auto optimizer = make_optimizer(*e.model, e.train);
  const bool has_checkpoint = std::filesystem::exists(run / "state.json");
  TrainResult result;
  result.step = has_checkpoint ? load_checkpoint(run, *e.model, *optimizer) : 0;

  MetricsFile metrics(run / "metrics.jsonl", result.step);
  const InterruptGuard interrupt;
  StatusLine status(quiet);
  const int64_t first = result.step;
  while (result.step < e.train.steps && !result.interrupted) {
    const StepResult made = train_step(e, *optimizer, result.step);
    ++result.step;

    const bool last = result.step == e.train.steps;
    if (result.step % e.train.log_every == 0 || last) {
      const double loss = made.scored.loss.item<double>();
      Score score;
      add_batch(made.scored, made.batch, made.rows, score);
      metrics.write({{"step", result.step},
                     {"loss", loss},
                     {"accuracy", score.all.percent()},
                     {"lr", made.lr},
                     {"grad_norm", made.grad_norm},
                     {"seconds", status.seconds()}});
      status.show(describe(result.step, first, e.train.steps, loss, score.all.percent(),
                           static_cast<double>(made.batch.tokens.numel()), status.seconds()),
                  last);
    }
    result.interrupted = interrupt.interrupted();
    if (result.step % e.train.checkpoint_every == 0 || last || result.interrupted) {
      save_checkpoint(run, *e.model, *optimizer, result.step);
    }
  }
  result.seconds = status.seconds();
  if (!result.interrupted) {
    result.score = evaluate(e);
    metrics.write({{"step", result.step},
                   {"seconds", result.seconds},
                   {"eval", to_json(result.score, e.task.slice_name)}});
  }
  return result;
}

}  // namespace hopmix::train
