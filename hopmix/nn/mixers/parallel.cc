#include "hopmix/nn/mixers/parallel.h"

#include <utility>

namespace hopmix::nn {
namespace {

// The tensors of all branches lie in one State: those of branch b under "b.".
std::string prefix(size_t branch) { return std::to_string(branch) + '.'; }

void put(size_t branch, State&& part, State& whole) {
  for (auto& [name, tensor] : part.tensors) {
    whole.tensors.insert_or_assign(prefix(branch) + name, std::move(tensor));
  }
}

State take(size_t branch, const State& whole) {
  State part;
  part.position = whole.position;
  const std::string start = prefix(branch);
  for (auto it = whole.tensors.lower_bound(start);
       it != whole.tensors.end() && it->first.starts_with(start); ++it) {
    part.tensors.emplace(it->first.substr(start.size()), it->second);
  }
  return part;
}

}  // namespace

Parallel::Parallel(int64_t width, const std::vector<std::shared_ptr<Mixer>>& branches)
    : branches_(branches) {
  for (size_t b = 0; b < branches_.size(); ++b) {
    register_module("branches_" + std::to_string(b), branches_[b]);
    norms_.push_back(
        register_module("norms_" + std::to_string(b), std::make_shared<RmsNorm>(width)));
  }
}

Tensor Parallel::forward(const Tensor& x, Context& context) {
  Tensor sum;
  for (size_t b = 0; b < branches_.size(); ++b) {
    const Tensor y = norms_[b]->forward(branches_[b]->forward(x, context)).to(x.scalar_type());
    sum = sum.defined() ? sum + y : y;
  }
  return sum / static_cast<double>(branches_.size());
}

State Parallel::initial_state(int64_t batch) const {
  State state;
  for (size_t b = 0; b < branches_.size(); ++b) put(b, branches_[b]->initial_state(batch), state);
  return state;
}

Tensor Parallel::step(const Tensor& x, State& state, Context& context) {
  Tensor sum;
  for (size_t b = 0; b < branches_.size(); ++b) {
    State part = take(b, state);
    const Tensor y = norms_[b]->forward(branches_[b]->step(x, part, context)).to(x.scalar_type());
    put(b, std::move(part), state);
    sum = sum.defined() ? sum + y : y;
  }
  ++state.position;
  return sum / static_cast<double>(branches_.size());
}

int64_t Parallel::state_bytes(int64_t t) const {
  int64_t total = 0;
  for (const std::shared_ptr<Mixer>& branch : branches_) total += branch->state_bytes(t);
  return total;
}

MixerEntry parallel_entry() {
  return {"parallel",
          "y = mean over branches b of RMSNorm(mixer_b(x))",
          "their sum",
          "their sum",
          "Dong et al. 2024 (Hymba, arXiv 2411.13676)",
          [](config::Table& table, const BlockDefaults& defaults) {
            std::vector<std::shared_ptr<Mixer>> branches;
            const toml::array fallback{toml::table{{"mixer", "mamba"}},
                                       toml::table{{"mixer", "local_attention"}}};
            for (config::Table& branch : table.tables("branches", fallback)) {
              branches.push_back(make_mixer(branch, defaults));
              branch.finish();
            }
            if (branches.empty()) {
              throw table.bad("branches", "needs at least one table with a mixer");
            }
            return std::make_shared<Parallel>(defaults.width, branches);
          }};
}

}  // namespace hopmix::nn
