#include "hopmix/train/experiment.h"

#include <cmath>
#include <numbers>

#include "hopmix/base/memory_size.h"
#include "hopmix/base/mix_bits.h"
#include "hopmix/ops/engines.h"

namespace hopmix::train {
namespace {

constexpr int64_t kMostThreads = 1024;  // with far more, OpenMP runs out of memory and aborts

TrainConfig read_train(config::Table table) {
  TrainConfig c;
  c.steps = table.get_at_least("steps", c.steps, 1);
  c.batch = table.get_at_least("batch", c.batch, 1);
  c.lr = table.get("lr", c.lr);
  c.warmup = table.get_at_least("warmup", c.warmup, 0);
  c.weight_decay = table.get("weight_decay", c.weight_decay);
  c.beta1 = table.get("beta1", c.beta1);
  c.beta2 = table.get("beta2", c.beta2);
  c.clip = table.get("clip", c.clip);
  c.precision = table.get_choice("precision", c.precision, {"float32", "bfloat16"});
  c.log_every = table.get_at_least("log_every", c.log_every, 1);
  c.checkpoint_every = table.get_at_least("checkpoint_every", c.checkpoint_every, 1);
  c.eval_batches = table.get_at_least("eval_batches", c.eval_batches, 1);
  if (!(c.lr > 0)) throw table.bad("lr", "must be above 0");
  for (const char* key : {"lr", "weight_decay", "clip"}) {
    if (std::isinf(table.get(key, 0.0))) throw table.bad(key, "must be finite");
  }
  if (!(c.weight_decay >= 0)) throw table.bad("weight_decay", "must be at least 0");
  if (!(c.clip >= 0)) throw table.bad("clip", "must be at least 0");
  for (const char* key : {"beta1", "beta2"}) {
    const double beta = table.get(key, 0.0);
    if (!(beta >= 0 && beta < 1)) throw table.bad(key, "must be in [0, 1)");
  }
  table.finish();
  return c;
}

// A batch takes at least its tokens, targets and slices, and a vector per token for the forward and
// one for what follows.
void check_batch(const Experiment& e) {
  const int64_t of_token =
      static_cast<int64_t>(sizeof(int64_t)) *
          (1 + static_cast<int64_t>(e.task.fields.size()) + 2 * e.task.readouts) +
      2 * static_cast<int64_t>(sizeof(float)) * e.model->config().width;
  const int64_t bytes =
      saturating_product(saturating_product(e.train.batch, e.task.length), of_token);
  const int64_t memory = memory_size();
  if (bytes <= memory) return;
  throw Error("train.batch = " + std::to_string(e.train.batch) + ": a batch of rows of " +
              std::to_string(e.task.length) + " tokens takes at least " + format_bytes(bytes) +
              ", more than this machine's memory, " + format_bytes(memory));
}

uint64_t mix(uint64_t x) { return mix_bits(x + kGoldenStep); }

}  // namespace

Experiment make_experiment(toml::table document) {
  ops::ensure_gemm_engine();  // reports a bad HOPMIX_GEMM before doing any work
  Experiment e;
  e.config = std::move(document);
  config::Table root(e.config);
  e.seed = root.get_at_least("seed", 0, 0);
  e.threads = root.get_at_least("threads", 0, 0);
  if (e.threads > kMostThreads) {
    throw root.bad("threads", "must be at most " + std::to_string(kMostThreads));
  }
  if (root.get("device", "cpu") != "cpu")
    throw root.bad("device", "must be cpu; no other backend is built");
  config::Table task = root.table("task");
  e.task = tasks::make_task(task);
  e.train = read_train(root.table("train"));
  torch::manual_seed(static_cast<uint64_t>(e.seed));
  config::Table model = root.table("model");
  e.model = nn::make_model(model, {.vocabulary = e.task.vocabulary,
                                   .length = e.task.length,
                                   .fields = e.task.fields,
                                   .readouts = e.task.readouts});
  root.finish();
  check_batch(e);
  e.inputs = pattern_inputs(*e.config["model"].as_table());
  for (const auto& [key, digest] : e.task.inputs) {
    e.inputs["task." + key] = {e.config["task"][key].value_or(std::string()), digest};
  }
  return e;
}

double learning_rate(const TrainConfig& config, int64_t step) {
  if (step < config.warmup) {
    return config.lr * static_cast<double>(step + 1) / static_cast<double>(config.warmup);
  }
  const double turn = std::numbers::pi * static_cast<double>(step - config.warmup) /
                      static_cast<double>(config.steps - config.warmup);
  return config.lr * 0.5 * (1.0 + std::cos(turn));
}

uint64_t batch_seed(int64_t seed, std::string_view stream, int64_t step) {
  uint64_t h = mix(static_cast<uint64_t>(seed));
  for (const char c : stream) h = mix(h ^ static_cast<unsigned char>(c));
  return mix(h ^ static_cast<uint64_t>(step));
}

}  // namespace hopmix::train
