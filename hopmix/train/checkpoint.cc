#include "hopmix/train/checkpoint.h"

#include <nlohmann/json.hpp>

#include "hopmix/base/files.h"
#include "hopmix/train/optimizer.h"
#include "hopmix/train/safetensors.h"

namespace hopmix::train {
namespace {

using std::filesystem::path;

constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";

path next_of(const path& file) { return file.string() + ".next"; }

// The step of `run`'s committed checkpoint.
int64_t read_step(const path& run) {
  const path file = run / "state.json";
  if (!std::filesystem::exists(file)) {
    throw Error("'" + run.string() + "' holds no checkpoint (state.json is missing)");
  }
  const auto state = nlohmann::json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
  const nlohmann::json step = state.is_object() ? state.value("step", nlohmann::json()) : nullptr;
  // A non-negative literal is parsed as unsigned, and one beyond 64 bits as a floating-point
  // number.
  if (!step.is_number_unsigned() || step.get<uint64_t>() > INT64_MAX) {
    throw Error("'" + file.string() + "' is damaged: it must hold {\"step\": N}");
  }
  return step.get<int64_t>();
}

bool is_finite(const torch::Tensor& tensor) { return tensor.isfinite().all().item<bool>(); }

// Reads a tensor file, which must be from `step`. If a writer is between its commit and its
// renames, or was killed there, the file still has its .next name; with `finish`, renames it.
SafetensorsFile read_at_step(const path& file, int64_t step, bool finish) {
  const std::string wanted = std::to_string(step);
  const auto stands = [&](const SafetensorsFile& read) {
    const auto found = read.metadata.find("step");
    return found != read.metadata.end() && found->second == wanted;
  };
  if (std::filesystem::exists(next_of(file))) {
    SafetensorsFile read;
    bool whole = true;
    try {
      read = read_safetensors(next_of(file));
    } catch (const Error&) {
      whole = false;
    }
    if (whole && stands(read)) {
      if (finish) std::filesystem::rename(next_of(file), file);
      return read;
    }
  }
  SafetensorsFile read = read_safetensors(file);
  if (!stands(read))
    throw Error("'" + file.string() + "' is not from step " + wanted + ", the step in state.json");
  return read;
}

void copy_weights(const SafetensorsFile& file, const path& name, nn::LanguageModel& model) {
  torch::NoGradGuard no_grad;
  const auto parameters = model.named_parameters();
  for (const auto& item : parameters) {
    const auto found = file.tensors.find(item.key());
    if (found == file.tensors.end()) {
      throw Error("'" + name.string() + "' lacks '" + item.key() +
                  "': it was saved by a different model");
    }
    if (found->second.sizes() != item.value().sizes()) {
      std::ostringstream message;
      message << "'" << name.string() << "': '" << item.key() << "' is " << found->second.sizes()
              << ", but the model has " << item.value().sizes();
      throw Error(message.str());
    }
    const std::string named = "'" + name.string() + "': '" + item.key() + "'";
    if (found->second.scalar_type() != item.value().scalar_type()) {
      throw Error(named + " is " + c10::toString(found->second.scalar_type()) +
                  ", but the model has " + c10::toString(item.value().scalar_type()));
    }
    if (!is_finite(found->second)) throw Error(named + " has a number that is not finite");
    torch::Tensor target = item.value();
    target.copy_(found->second);
  }
  if (file.tensors.size() != parameters.size()) {
    throw Error("'" + name.string() + "' holds " + std::to_string(file.tensors.size()) +
                " tensors, but the model has " + std::to_string(parameters.size()) +
                ": it was saved by a different model");
  }
}

}  // namespace

void save_checkpoint(const path& run, const nn::LanguageModel& model,
                     torch::optim::AdamW& optimizer, int64_t step) {
  const std::map<std::string, std::string> metadata = {{"step", std::to_string(step)},
                                                       {"format", "pt"}};
  std::map<std::string, torch::Tensor> weights;
  for (const auto& item : model.named_parameters()) weights[item.key()] = item.value().detach();
  std::map<std::string, torch::Tensor> moments = optimizer_state(optimizer, model);
  for (const auto* tensors : {&weights, &moments}) {
    for (const auto& [name, tensor] : *tensors) {
      if (is_finite(tensor)) continue;
      throw Error("step " + std::to_string(step) + ": '" + name +
                  "' has a number that is not finite, so no checkpoint was saved; lower train.lr, "
                  "or train.clip");
    }
  }
  write_safetensors(next_of(run / kModel), weights, metadata);
  write_safetensors(next_of(run / kOptimizer), moments, metadata);
  write_file(run / "state.json", nlohmann::json{{"step", step}}.dump() + "\n");
  for (const char* name : {kModel, kOptimizer}) {
    std::filesystem::rename(next_of(run / name), run / name);
  }
}

int64_t load_weights(const path& run, nn::LanguageModel& model) {
  for (;;) {
    const int64_t step = read_step(run);
    try {
      copy_weights(read_at_step(run / kModel, step, /*finish=*/false), run / kModel, model);
      return step;
    } catch (const Error&) {
      if (read_step(run) == step) throw;  // otherwise the trainer has just saved: retry
    }
  }
}

int64_t load_checkpoint(const path& run, nn::LanguageModel& model, torch::optim::AdamW& optimizer) {
  const int64_t step = read_step(run);
  copy_weights(read_at_step(run / kModel, step, /*finish=*/true), run / kModel, model);
  const SafetensorsFile moments = read_at_step(run / kOptimizer, step, /*finish=*/true);
  load_optimizer_state(moments.tensors, step, model, optimizer);
  return step;
}

}  // namespace hopmix::train
