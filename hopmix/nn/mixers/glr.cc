#include "hopmix/nn/mixers/glr.h"

#include <algorithm>

#include "hopmix/nn/by_sequence.h"

namespace hopmix::nn {
namespace {

const std::vector<std::string> kCoefficients = {"shared", "independent", "normalized",
                                                "normalized_read"};

// From this length on, the dense recurrence is faster in blocks of matrix products than per read.
constexpr int64_t kWorthBlocks = 128;

// [B,1,H] -> [B,H,1], to weight the vectors or logits of a head.
Tensor per_head(const Tensor& x) { return x.squeeze(1).unsqueeze(-1); }

}  // namespace

Glr::Glr(const GlrConfig& config)
    : config_(config), rows_(config.pattern), past_(config.pattern, config.end) {
  check_heads(config);
  if (std::count(kCoefficients.begin(), kCoefficients.end(), config.coefficients) == 0) {
    throw Error("coefficients = '" + config.coefficients +
                "': must be shared, independent, normalized or normalized_read");
  }
  const int64_t projections = independent() ? 5 : 3, gates = independent() ? 1 : 3;
  qkv_ = register_module("qkv", linear(config.input_width(), projections * config.width));
  gates_ =
      register_module("gates", linear(config.input_width(), gates * config.heads, /*bias=*/true));
  out_ = register_module("out", linear(config.width, config.width));
  if (normalized()) {
    norm_ = register_module("norm", std::make_shared<RmsNorm>(config.head_width()));
  }
}

Glr::Projections Glr::project(const Tensor& input, const Starts& start) {
  Projections p;
  std::vector<int64_t> widths(independent() ? 5 : 3, config_.width);
  widths.push_back(gates_->weight.size(0));
  std::vector<Tensor> parts = linear_parts(input, {qkv_->weight, gates_->weight}, widths);
  const Tensor logits = parts.back() + gates_->bias.to(parts.back().scalar_type());
  parts.pop_back();
  for (Tensor& part : parts) part = split_heads(part, config_.heads);
  if (config_.rope) {
    if (independent()) {
      rotate(parts, {0, 1, 3, 4}, start);
    } else {
      rotate(parts, {0, 1}, start);
    }
  }
  p.q = parts[0];
  p.k = parts[1];
  p.v = parts[2];
  const std::vector<Tensor> gates =
      (normalized() ? logits : torch::sigmoid(logits)).split(config_.heads, 2);
  p.gate = gates[0];
  if (independent()) {
    p.q_in = parts[3];
    p.k_in = parts[4];
  } else {
    p.d = gates[1];
    p.d_self = gates[2];
  }
  return p;
}

Glr::Projections Glr::Projections::row(size_t b) const {
  const auto of = [b](const Tensor& all) {
    return all.defined() ? all.narrow(0, static_cast<int64_t>(b), 1) : all;
  };
  return {of(q), of(k), of(v), of(q_in), of(k_in), of(gate), of(d), of(d_self)};
}

Tensor Glr::normalize(const Tensor& y) { return norm_->forward(y).to(y.scalar_type()); }

Tensor Glr::solve(const Projections& p, const Packing& packing) {
  const int64_t time = p.q.size(1);
  const auto& cu = packing.cu_seqlens();
  if (shared() && past_.is_dense() && packing.longest(time) >= kWorthBlocks) {
    return ops::dense_recurrence(p.q, p.k, p.v, p.gate, p.d, p.d_self, {}, cu);
  }
  const ops::PatternArg rows = rows_.at(time, packing);
  if (normalized()) {
    return ops::glr_softmax(p.q, p.k, p.v, p.d, p.d_self, p.gate, rows, {}, gate_on_read(), cu);
  }
  if (shared()) return ops::glr_attention(p.q, p.k, p.v, p.gate, p.d, p.d_self, rows, {}, cu);
  // Y = (I - B)^{-1} (A X): the direct part is sparse attention; the solve is the shared form with
  // D = 0 and D' = 1.
  const Tensor direct =
      ops::sparse_attention(p.q_in, p.k_in, p.v, rows, /*include_self=*/true, {}, cu);
  const Tensor zero = torch::zeros_like(p.gate), one = torch::ones_like(p.gate);
  return ops::glr_attention(p.q, p.k, direct, p.gate, zero, one, rows, {}, cu);
}

Tensor Glr::forward(const Tensor& x, Context& context) {
  const Packing& packing = context.packing;
  const Tensor input = shift_tokens(config_, x, packing);
  const Tensor y = solve(project(input, packing), packing);
  return out_(context.wanted((normalized() ? normalize(y) : y).flatten(2)));
}

Tensor Glr::prefill(const Tensor& x, State& state, Context& context) {
  // The operators require an empty past.
  if (state.position > 0) return Mixer::prefill(x, state, context);
  const Projections p = project(shift_more_tokens(config_, x, state), 0);
  const Tensor y = solve(p);
  past_.extend(state, entries(p, y));
  state.position += x.size(1);
  return out_((normalized() ? normalize(y) : y).flatten(2));
}

Past::Entries Glr::entries(const Projections& p, const Tensor& y) const {
  if (independent()) return {{"k", p.k}, {"z", y}, {"k_in", p.k_in}, {"v", p.v}};
  if (shared()) return {{"k", p.k}, {"z", y + p.d.unsqueeze(-1) * p.v}};
  if (!gate_on_read()) return {{"k", p.k}, {"z", y}, {"v", p.v}, {"d", p.d}};
  const Tensor direct = torch::sigmoid(p.d - p.gate).unsqueeze(-1);
  return {{"k", p.k}, {"u", direct * p.v + (1 - direct) * y}, {"c", torch::logaddexp(p.d, p.gate)}};
}

Glr::Cached Glr::cached() const {
  // z is the solution of the recurrence, which is y itself unless shared.
  if (independent()) return {{"k", "z", "k_in", "v"}, {}};
  if (gate_on_read()) return {{"k", "u"}, {"c"}};
  if (normalized()) return {{"k", "z", "v"}, {"d"}};
  return {{"k", "z"}, {}};
}

State Glr::initial_state(int64_t batch) const {
  State state;
  init_token_shift(config_, batch, options(), state);
  const Cached names = cached();
  for (const std::string& name : names.vectors) {
    state.tensors[name] = torch::empty({batch, 0, config_.heads, config_.head_width()}, options());
  }
  for (const std::string& name : names.scalars) {
    state.tensors[name] = torch::empty({batch, 0, config_.heads}, options());
  }
  return state;
}

Tensor Glr::read_past(const Tensor& q, const char* k, const char* v, const State& state,
                      const std::optional<std::pair<Tensor, Tensor>>& own) const {
  return token_attention(q.squeeze(1), past_.held_rows(state, k), past_.held_rows(state, v),
                         past_.slots_read(state), own);
}

Tensor Glr::step_shared(const Projections& p, State& state) {
  const Tensor v = p.v.squeeze(1), d = per_head(p.d), d_self = per_head(p.d_self);
  const Tensor read = read_past(p.q, "k", "z", state);
  const Tensor z = (d + d_self) * v + per_head(p.gate) * read;
  past_.append(state, {{"k", p.k.squeeze(1)}, {"z", z}});
  return z - d * v;
}

Tensor Glr::step_independent(const Projections& p, State& state) {
  const Tensor y = read_past(p.q_in, "k_in", "v", state, std::pair(p.k_in, p.v)) +
                   per_head(p.gate) * read_past(p.q, "k", "z", state);
  past_.append(
      state, {{"k", p.k.squeeze(1)}, {"z", y}, {"k_in", p.k_in.squeeze(1)}, {"v", p.v.squeeze(1)}});
  return y;
}

Tensor Glr::step_normalized(const Projections& p, State& state) {
  const Tensor v = p.v.squeeze(1), d_self = per_head(p.d_self);
  const Tensor scores = token_scores(p.q.squeeze(1), past_.read(state, "k"));  // [B,H,c]
  const auto logits_of = [&](const char* name) { return past_.read(state, name).transpose(1, 2); };
  if (gate_on_read()) {
    // e^{d_j} v_j + e^{g_j} y_j = e^{c_j} u_j.
    const Tensor weights = torch::softmax(torch::cat({d_self, scores + logits_of("c")}, -1), -1);
    const Tensor y =
        weights.narrow(-1, 0, 1) * v + token_sum(weights.slice(-1, 1), past_.read(state, "u"));
    const Tensor d = p.d.squeeze(1), g = p.gate.squeeze(1);
    const Tensor direct = torch::sigmoid(per_head(p.d - p.gate));
    past_.append(state, {{"k", p.k.squeeze(1)},
                         {"u", direct * v + (1 - direct) * y},
                         {"c", torch::logaddexp(d, g)}});
    return y;
  }
  const Tensor weights = torch::softmax(
      torch::cat({d_self, scores + logits_of("d"), scores + per_head(p.gate)}, -1), -1);
  const std::vector<Tensor> parts =
      weights.split_with_sizes({1, scores.size(-1), scores.size(-1)}, -1);
  const Tensor y = parts[0] * v + token_sum(parts[1], past_.read(state, "v")) +
                   token_sum(parts[2], past_.read(state, "z"));
  past_.append(state, {{"k", p.k.squeeze(1)}, {"z", y}, {"v", v}, {"d", p.d.squeeze(1)}});
  return y;
}

Tensor Glr::advance(const Projections& p, State& state) {
  const Tensor y = normalized()    ? step_normalized(p, state)
                   : independent() ? step_independent(p, state)
                                   : step_shared(p, state);
  ++state.position;
  return y;
}

Tensor Glr::step(const Tensor& x, State& state, Context&) {
  const Tensor y = advance(project(shift_tokens_step(config_, x, state), state.position), state);
  return out_((normalized() ? normalize(y) : y).flatten(1));
}

Tensor Glr::step_each(const Tensor& x, std::span<State* const> states, std::span<Context>) {
  const Projections p = project(shift_tokens_each(config_, x, states), Starts(states));
  const Tensor y =
      by_sequence(states.size(), [&](size_t b) { return advance(p.row(b), *states[b]); });
  return out_((normalized() ? normalize(y) : y).flatten(1));
}

int64_t Glr::state_bytes(int64_t t) const {
  const Cached names = cached();
  const int64_t a_token = static_cast<int64_t>(names.vectors.size()) * config_.width +
                          static_cast<int64_t>(names.scalars.size()) * config_.heads;
  return past_.bytes(t, a_token * element_size()) + token_shift_elements(config_) * element_size();
}

MixerEntry glr_entry() {
  return {"glr",
          "y_i = sum_{j in S_i, j=i} a_ij x_j + sum_{j in S_i} b_ij y_j",
          "|S_i|",
          "2 cache(S); 3 if normalized, 4 if independent",
          "Fagnou et al. 2026 (arXiv 2605.31367)",
          [](config::Table& table, const BlockDefaults& defaults) {
            GlrConfig config{read_heads(table, defaults)};
            config.pattern = read_pattern(table, config.pattern, defaults);
            config.coefficients =
                table.get_choice("coefficients", config.coefficients, kCoefficients);
            return std::make_shared<Glr>(config);
          }};
}

}  // namespace hopmix::nn
