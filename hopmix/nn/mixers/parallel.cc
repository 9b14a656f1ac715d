#include "hopmix/nn/mixers/parallel.h"

#include <algorithm>
#include <utility>

#include "hopmix/nn/heads.h"
#include "hopmix/nn/publication.h"

namespace hopmix::nn {
namespace {

// One State holds the tensors of all branches, those of branch b under "b.".
std::string prefix(size_t branch) { return std::to_string(branch) + '.'; }

void put(size_t branch, State&& part, State& whole) {
  for (auto& [name, tensor] : part.tensors) {
    whole.tensors.insert_or_assign(prefix(branch) + name, std::move(tensor));
  }
}

// Moved out, so that nothing else refers to the memory that the branch writes to.
State take(size_t branch, State& whole) {
  State part;
  part.position = whole.position;
  const std::string start = prefix(branch);
  for (auto it = whole.tensors.lower_bound(start);
       it != whole.tensors.end() && it->first.starts_with(start);) {
    part.tensors.emplace(it->first.substr(start.size()), std::move(it->second));
    it = whole.tensors.erase(it);
  }
  return part;
}

// Reads the mixer of a branch's table. Its output must be one that can be added to the others'.
MixerPlan read_branch(config::Table& table, const BlockDefaults& defaults) {
  MixerPlan branch = read_mixer(table, defaults);
  if (branch.one_vector_a_hop) {
    throw table.bad("readout",
                    "returns one vector per hop, which only the last block of a model may do");
  }
  table.finish();
  return branch;
}

// Attention to the kappa entries retrieved from the cache that `table` names.
MixerPlan retrieved_branch(config::Table& table, const BlockDefaults& defaults) {
  const int64_t kappa = read_kappa(table, 32);
  toml::table keys{
      {"mixer", "mura"}, {"mem", table.require("mem")}, {"widths", toml::array{kappa}}};
  config::Table branch(keys, table.path());
  return read_mixer(branch, defaults);
}

MixerPlan side_by_side(int64_t width, const std::vector<MixerPlan>& plans, Combine combine) {
  return {[=] {
    std::vector<std::shared_ptr<Mixer>> branches;
    for (const MixerPlan& branch : plans) branches.push_back(branch.build());
    return std::make_shared<Parallel>(width, branches, combine);
  }};
}

}  // namespace

Parallel::Parallel(int64_t width, const std::vector<std::shared_ptr<Mixer>>& branches,
                   Combine combine)
    : branches_(branches) {
  for (size_t b = 0; b < branches_.size(); ++b) {
    register_module("branches_" + std::to_string(b), branches_[b]);
    if (combine == Combine::kGates) continue;
    norms_.push_back(
        register_module("norms_" + std::to_string(b), std::make_shared<RmsNorm>(width)));
  }
  if (combine == Combine::kGates) {
    gates_ = register_module("gates",
                             linear(width, static_cast<int64_t>(branches_.size()), /*bias=*/true));
  }
}

template <typename Part>
Tensor Parallel::combine(const Tensor& gates, const Part& part) {
  Tensor sum;
  for (size_t b = 0; b < branches_.size(); ++b) {
    Tensor y = part(b);
    y = gates_ ? y * gates.narrow(-1, static_cast<int64_t>(b), 1)
               : norms_[b]->forward(y).to(y.scalar_type());
    sum = sum.defined() ? sum + y : y;
  }
  return gates_ ? sum : sum / static_cast<double>(branches_.size());
}

Tensor Parallel::forward(const Tensor& x, Context& context) {
  const Tensor gates = gates_ ? torch::sigmoid(gates_(context.wanted(x))) : Tensor();
  return combine(gates, [&](size_t b) { return branches_[b]->forward(x, context); });
}

State Parallel::initial_state(int64_t batch) const {
  State state;
  for (size_t b = 0; b < branches_.size(); ++b) put(b, branches_[b]->initial_state(batch), state);
  return state;
}

template <typename Advance>
Tensor Parallel::advance(const Tensor& x, std::span<State* const> states,
                         const Advance& of_branch) {
  const Tensor gates = gates_ ? torch::sigmoid(gates_(x)) : Tensor();
  return combine(gates, [&](size_t b) {
    std::vector<State> parts;
    for (State* state : states) parts.push_back(take(b, *state));
    std::vector<State*> of_parts;
    for (State& part : parts) of_parts.push_back(&part);
    const Tensor y = of_branch(*branches_[b], of_parts);
    for (size_t s = 0; s < states.size(); ++s) put(b, std::move(parts[s]), *states[s]);
    return y;
  });
}

Tensor Parallel::step(const Tensor& x, State& state, Context& context) {
  State* const one[] = {&state};
  const Tensor y = advance(x, one, [&](Mixer& branch, std::span<State* const> part) {
    return branch.step(x, *part[0], context);
  });
  ++state.position;
  return y;
}

Tensor Parallel::step_each(const Tensor& x, std::span<State* const> states,
                           std::span<Context> contexts) {
  const Tensor y = advance(x, states, [&](Mixer& branch, std::span<State* const> parts) {
    return branch.step_each(x, parts, contexts);
  });
  for (State* state : states) ++state->position;
  return y;
}

Tensor Parallel::prefill(const Tensor& x, State& state, Context& context) {
  if (shares_cache()) return Mixer::prefill(x, state, context);
  State* const one[] = {&state};
  const Tensor y = advance(x, one, [&](Mixer& branch, std::span<State* const> part) {
    return branch.prefill(x, *part[0], context);
  });
  state.position += x.size(1);
  return y;
}

void Parallel::check_length(int64_t tokens) const {
  for (const std::shared_ptr<Mixer>& branch : branches_) branch->check_length(tokens);
}

void Parallel::check_step(int64_t position) const {
  for (const std::shared_ptr<Mixer>& branch : branches_) branch->check_step(position);
}

void Parallel::check_state(const State& state) const {
  State rest = state;
  for (size_t b = 0; b < branches_.size(); ++b) branches_[b]->check_state(take(b, rest));
  if (rest.tensors.empty()) return;
  throw Error("tensor '" + rest.tensors.begin()->first + "' does not belong to it");
}

bool Parallel::shares_cache() const {
  return std::any_of(branches_.begin(), branches_.end(),
                     [](const auto& branch) { return branch->shares_cache(); });
}

int64_t Parallel::state_bytes(int64_t t) const {
  int64_t total = 0;
  for (const std::shared_ptr<Mixer>& branch : branches_) total += branch->state_bytes(t);
  return total;
}

MixerEntry parallel_entry() {
  return {"parallel",
          "y = mean over b of RMSNorm(mixer_b(x)), or sum of gated mixer_b(x)",
          "their sum",
          "their sum",
          "Dong et al. 2024 (Hymba, arXiv 2411.13676)",
          [](config::Table& table, const BlockDefaults& defaults) {
            std::vector<MixerPlan> branches;
            const toml::array fallback{toml::table{{"mixer", "mamba"}},
                                       toml::table{{"mixer", "local_attention"}}};
            for (config::Table& branch : table.tables("branches", fallback)) {
              branches.push_back(read_branch(branch, defaults));
            }
            if (branches.empty()) {
              throw table.bad("branches", "needs at least one table with a mixer");
            }
            const std::string combine = table.get_choice("combine", "mean", {"mean", "gates"});
            return side_by_side(defaults.width, branches,
                                combine == "mean" ? Combine::kMean : Combine::kGates);
          }};
}

MixerEntry topk_access_entry() {
  return {"topk_access",
          "y = g_1 recurrent(x) + g_2 sum_{t in top k} softmax(q_i.k_t) v_t",
          "k + the recurrence's",
          "the recurrence's",
          "Eitan et al. 2026 (MURA, Definition 2.3)",
          [](config::Table& table, const BlockDefaults& defaults) {
            config::Table recurrent = table.table("recurrent");
            recurrent.get("mixer", "gated_deltanet");
            const MixerPlan base = read_branch(recurrent, defaults);
            return side_by_side(defaults.width, {base, retrieved_branch(table, defaults)},
                                Combine::kGates);
          },
          /*reads_mem=*/true};
}

MixerEntry hysparse_entry() {
  return {"hysparse",
          "y = g_1 sum_{i-w<j<=i} softmax(q_i.k_j) v_j + g_2 sum_{t in top k} softmax(q_i.k_t) v_t",
          "w + k",
          "2(w-1)",
          "Gao et al. 2026 (HySparse, arXiv 2602.03560)",
          [](config::Table& table, const BlockDefaults& defaults) {
            toml::table local{{"mixer", "local_attention"},
                              {"window", table.get_at_least("window", 64, 2)}};
            config::Table branch(local, table.path());
            return side_by_side(defaults.width,
                                {read_mixer(branch, defaults), retrieved_branch(table, defaults)},
                                Combine::kGates);
          },
          /*reads_mem=*/true};
}

}  // namespace hopmix::nn
