#include "hopmix/nn/mixers/glr.h"

namespace hopmix::nn {

Glr::Glr(const GlrConfig& config) : config_(config), rows_(config.pattern), past_(config.pattern) {
  check_heads(config);
  if (config.coefficients != "shared" && config.coefficients != "independent") {
    throw Error("coefficients = '" + config.coefficients + "': must be shared or independent");
  }
  const int64_t projections = shared() ? 3 : 5, gates = shared() ? 3 : 1;
  qkv_ = register_module("qkv", linear(config.input_width(), projections * config.width));
  gates_ =
      register_module("gates", linear(config.input_width(), gates * config.heads, /*bias=*/true));
  out_ = register_module("out", linear(config.width, config.width));
}

Glr::Projections Glr::project(const Tensor& input, int64_t start) {
  Projections p;
  std::vector<int64_t> widths(shared() ? 3 : 5, config_.width);
  widths.push_back(gates_->weight.size(0));
  std::vector<Tensor> parts =
      linear_parts(input, torch::cat({qkv_->weight, gates_->weight}), widths);
  const Tensor all_gates =
      torch::sigmoid(parts.back() + gates_->bias.to(parts.back().scalar_type()));
  parts.pop_back();
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i] = split_heads(parts[i], config_.heads);
    if (config_.rope && i != 2) parts[i] = apply_rope(parts[i], start);
  }
  p.q = parts[0];
  p.k = parts[1];
  p.v = parts[2];
  const std::vector<Tensor> gates = all_gates.split(config_.heads, 2);
  p.gate = gates[0];
  if (shared()) {
    p.d = gates[1];
    p.d_self = gates[2];
  } else {
    p.q_in = parts[3];
    p.k_in = parts[4];
  }
  return p;
}

Tensor Glr::forward(const Tensor& x, Context& context) {
  const Projections p = project(shift_tokens(config_, x), 0);
  const ops::PatternArg rows = rows_.at(x.size(1));
  if (shared()) {
    const Tensor y = ops::glr_attention(p.q, p.k, p.v, p.gate, p.d, p.d_self, rows);
    return out_(context.wanted(y.flatten(2)));
  }
  // Y = (I - B)^{-1} (A X): the direct part is sparse attention; the solve is the shared form with
  // D = 0 and D' = 1.
  const Tensor direct = ops::sparse_attention(p.q_in, p.k_in, p.v, rows, /*include_self=*/true);
  const Tensor zero = torch::zeros_like(p.gate), one = torch::ones_like(p.gate);
  const Tensor y = ops::glr_attention(p.q, p.k, direct, p.gate, zero, one, rows);
  return out_(context.wanted(y.flatten(2)));
}

std::vector<std::string> Glr::cached() const {
  // z is the solution of the recurrence (y itself if independent).
  return shared() ? std::vector<std::string>{"k", "z"}
                  : std::vector<std::string>{"k", "z", "k_in", "v"};
}

State Glr::initial_state(int64_t batch) const {
  State state;
  init_token_shift(config_, batch, options(), state);
  for (const std::string& name : cached()) {
    state.tensors[name] = torch::empty({batch, 0, config_.heads, config_.head_width()}, options());
  }
  return state;
}

Tensor Glr::step(const Tensor& x, State& state, Context&) {
  const Projections p = project(shift_tokens_step(config_, x, state), state.position);
  const Tensor q = p.q.squeeze(1), k = p.k.squeeze(1), v = p.v.squeeze(1);
  const Tensor gate = p.gate.squeeze(1).unsqueeze(-1);  // [B,H,1]
  const Tensor recurrent =
      gate * token_sum(token_softmax(q, past_.read(state, "k")), past_.read(state, "z"));
  Tensor y;
  if (shared()) {
    const Tensor d = p.d.squeeze(1).unsqueeze(-1), d_self = p.d_self.squeeze(1).unsqueeze(-1);
    const Tensor z = (d + d_self) * v + recurrent;
    y = z - d * v;
    past_.append(state, {{"k", k}, {"z", z}});
  } else {
    const Tensor k_in = torch::cat({past_.read(state, "k_in"), p.k_in}, 1);
    const Tensor values = torch::cat({past_.read(state, "v"), p.v}, 1);
    y = token_sum(token_softmax(p.q_in.squeeze(1), k_in), values) + recurrent;
    past_.append(state, {{"k", k}, {"z", y}, {"k_in", p.k_in.squeeze(1)}, {"v", v}});
  }
  ++state.position;
  return out_(y.flatten(1));
}

int64_t Glr::state_bytes(int64_t t) const {
  const int64_t vectors = static_cast<int64_t>(cached().size());
  return (vectors * past_.held(t) * config_.width + token_shift_elements(config_)) * element_size();
}

MixerEntry glr_entry() {
  return {"glr",
          "y_i = sum_{j in S_i, j=i} a_ij x_j + sum_{j in S_i} b_ij y_j",
          "|S_i|",
          "2 cache(S); 4 if independent",
          "Fagnou et al. 2026 (arXiv 2605.31367)",
          [](config::Table& table, const BlockDefaults& defaults) {
            GlrConfig config{read_heads(table, defaults)};
            config.pattern = read_pattern(table, config.pattern, defaults);
            config.coefficients =
                table.get_choice("coefficients", config.coefficients, {"shared", "independent"});
            return std::make_shared<Glr>(config);
          }};
}

}  // namespace hopmix::nn
