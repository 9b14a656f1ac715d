#include "hopmix/nn/mixers/retrieved_recurrence.h"

#include <algorithm>
#include <cmath>

#include "hopmix/nn/shared_cache.h"
#include "hopmix/nn/token_shift.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {
namespace {

// A register's gates start near 1, so that distant hops are visible from the start.
constexpr double kOpenGate = 3;
// Gates of the scalar form start spread over (-1, 1), because heads distinguish hops by powers of
// their gates.
constexpr double kWidestGate = 0.9;
constexpr double kSmallWeight = 0.1;
constexpr int64_t kMostHops = 4096;

// The shape of z of a token. No later token reads the last hop.
std::vector<int64_t> entry(const RetrievedRecurrenceConfig& config) {
  const int64_t value_width = config.publication.value_width;
  if (config.scalar()) return {config.heads, value_width};
  return {config.heads, config.hops, value_width};
}

}  // namespace

RetrievedRecurrence::RetrievedRecurrence(const RetrievedRecurrenceConfig& config)
    : config_(config), cache_(Pattern("dense", 1), {{"z", {entry(config)}}}) {
  keep(token_shift_state(config));
  keep(cache_.state());
  const int64_t heads = config.heads, value_width = config.publication.value_width;
  gates_ = register_module(
      "gates", linear(config.input_width(), (config_.scalar() ? 3 : 1) * heads, /*bias=*/true));
  const int64_t vectors = config.readout == "joint" && !config_.scalar() ? config.hops + 1 : 1;
  out_ = register_module("out", linear(heads * vectors * value_width, config.width));
  const torch::NoGradGuard no_grad;
  gates_->weight.mul_(kSmallWeight);
  Tensor gate = gates_->bias.narrow(0, 0, heads);
  if (config_.scalar()) {
    gate.copy_(heads > 1 ? torch::linspace(-kWidestGate, kWidestGate, heads).atanh()
                         : torch::ones(1));
  } else {
    gate.fill_(kOpenGate);
  }
}

std::vector<Tensor> RetrievedRecurrence::gates(const Tensor& input) {
  const Tensor all = gates_(input);
  if (!config_.scalar()) return {torch::sigmoid(all)};
  const std::vector<Tensor> parts = all.chunk(3, -1);
  return {torch::tanh(parts[0]), torch::sigmoid(parts[1]), torch::sigmoid(parts[2])};
}

Tensor RetrievedRecurrence::read(const Tensor& z) {
  if (!one_vector_a_hop()) return out_(z.flatten(config_.scalar() ? -2 : -3));
  return out_(z.slice(-2, 1).transpose(-2, -3).flatten(-2));  // [...,hops,heads*DV]
}

Tensor RetrievedRecurrence::forward(const Tensor& x, Context& context) {
  const SharedCache& cache = *context.mem.at(config_.mem);
  const auto& cu_seqlens = context.packing.cu_seqlens();
  const std::vector<Tensor> gate = gates(shift_tokens(config_, x, context.packing));
  const Tensor indices = cache.earlier.indices.slice(3, 0, config_.kappa);
  Tensor z;
  if (config_.scalar()) {
    const int64_t group = config_.heads / cache.q.size(2);
    z = ops::retrieved_glr(cache.q.repeat_interleave(group, 2), cache.k, cache.v, gate[0], gate[1],
                           gate[2], indices.repeat_interleave(group, 2), {}, cu_seqlens);
  } else {
    z = ops::retrieved_recurrence(cache.q, cache.k, cache.v, gate[0], indices, config_.hops, {},
                                  cu_seqlens);
  }
  return read(context.wanted(z));
}

Tensor RetrievedRecurrence::step(const Tensor& x, State& state, Context& context) {
  const SharedCache& cache = *context.mem.at(config_.mem);
  std::vector<Tensor> gate = gates(shift_tokens_step(config_, x, state));
  for (Tensor& g : gate) g = g.squeeze(1).unsqueeze(-1);  // [B,heads,1]
  const int64_t heads = config_.heads;
  const auto by_head = [heads](const Tensor& rows) {  // [B,n,H,*] -> [B,heads,n,*]
    return rows.transpose(1, 2).repeat_interleave(heads / rows.size(2), 1);
  };
  const Tensor v = by_head(cache.v.slice(1, -1)).squeeze(2);  // [B,heads,DV]

  const int64_t numbers = c10::multiply_integers(entry(config_)) / heads;
  Tensor sum = torch::zeros({x.size(0), heads, numbers}, v.options());
  if (state.position > 0) {
    const Tensor list = by_head(cache.earlier.indices.slice(3, 0, config_.kappa))
                            .squeeze(2)
                            .to(torch::kInt64);  // [B,heads,kappa]
    // [B,n,H,*] -> [B,heads,kappa,*], the only copy
    const auto listed = [&](const Tensor& rows) {
      const int64_t group = heads / rows.size(2), kappa = list.size(2);
      const Tensor at = list.clamp_min(0).reshape({x.size(0), rows.size(2), group * kappa, 1});
      return rows.transpose(1, 2)
          .gather(2, at.expand({-1, -1, -1, rows.size(3)}))
          .unflatten(2, {group, kappa})
          .flatten(1, 2);
    };
    const Tensor q = by_head(cache.q).squeeze(2);
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(2)));
    const Tensor scores = torch::einsum("bhd,bhkd->bhk", {q * scale, listed(cache.k)});
    const Tensor p = torch::softmax(scores.masked_fill(list < 0, -INFINITY), -1);
    sum = torch::einsum("bhk,bhkd->bhd", {p, listed(cache_.held_rows(state, "z").flatten(3))});
  }

  Tensor kept, z;
  if (config_.scalar()) {
    kept = (gate[1] + gate[2]) * v + gate[0] * sum;
    z = kept - gate[1] * v;
  } else {
    z = torch::cat({v.unsqueeze(2), (gate[0] * sum).unflatten(2, {config_.hops, v.size(2)})}, 2);
    kept = z.slice(2, 0, config_.hops);
  }
  cache_.append(state, {kept.unsqueeze(1)});
  ++state.position;
  return read(z);
}

int64_t RetrievedRecurrence::state_bytes(int64_t t) const {
  return Mixer::state_bytes(t) + cache_.bytes(t, options());
}

MixerEntry retrieved_recurrence_entry() {
  return {"retrieved_recurrence",
          "z_i^(r) = gate_i sum_{j in top k} softmax(q_i.k_j) z_j^(r-1), z_i^(0) = v_i",
          "hops k",
          "n hops",
          "hopmix; docs/retrieved-recurrence.md",
          [](config::Table& table, const BlockDefaults& defaults) {
            RetrievedRecurrenceConfig config;
            Publication& from = find_publication(table, *defaults.mem);
            config.publication = from;
            config.mem = table.require("mem");
            config.width = defaults.width;
            config.token_shift = table.get("token_shift", defaults.token_shift);
            config.kappa = read_kappa(table, config.kappa);
            config.form = table.get_choice("form", config.form, {"register", "scalar"});
            config.heads = from.heads;
            if (config.form == "scalar") {
              config.heads = read_reader_heads(table, from);
            } else {
              config.hops =
                  table.get_between("hops", std::max<int64_t>(defaults.readouts, 4), 1, kMostHops);
              config.readout = table.get_choice("readout", config.readout, {"joint", "shared"});
              if (config.readout == "shared" && config.hops < defaults.readouts) {
                throw table.bad("hops", "must be at least the task's readouts, " +
                                            std::to_string(defaults.readouts));
              }
            }
            from.ask({config.kappa}, /*include_self=*/false);
            MixerPlan result = plan<RetrievedRecurrence>(config);
            result.one_vector_a_hop = config.readout == "shared";
            return result;
          },
          /*reads_mem=*/true};
}

}  // namespace hopmix::nn
