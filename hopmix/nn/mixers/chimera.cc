#include "hopmix/nn/mixers/chimera.h"

#include <algorithm>

#include "hopmix/nn/pattern_rows.h"
#include "hopmix/nn/state_space.h"
#include "hopmix/nn/token_shift.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {
namespace {

constexpr int64_t kBits = 31;  // bits of an edge's length, since cols are int32

}  // namespace

Chimera::Chimera(const ChimeraConfig& config)
    : config_(config),
      cache_(
          config.pattern,
          {{"S", {{config.heads, config.state, config.head_width()}}}, {"from", {{config.heads}}}},
          config.end) {
  keep(token_shift_state(config));
  keep(cache_.state());
  const int64_t width = config.width, heads = config.heads;
  in_ =
      register_module("in", linear(config.input_width(), 2 * width + 2 * config.state + 2 * heads));
  norm_ = register_module("norm", std::make_shared<RmsNorm>(width));
  out_ = register_module("out", linear(width, width));
  const auto steps = [&](int64_t rows) {
    return inverse_softplus(random_step_sizes(rows * heads)).view({rows, heads});
  };
  bias_ = register_parameter("bias", steps(2));
  edges_ = register_parameter("edges", steps(kBits));
  d_ = register_parameter("d", torch::ones({heads}));
}

Chimera::Projections Chimera::project(const Tensor& input) {
  const int64_t width = config_.width, state = config_.state, heads = config_.heads;
  const std::vector<Tensor> parts =
      linear_parts(input, {in_->weight}, {width, width, state, state, heads, heads});
  Projections p;
  p.z = parts[0];
  p.x = split_heads(parts[1], heads);
  p.read = parts[3].unsqueeze(2);
  p.to = torch::softplus(parts[4] + bias_[0]);
  p.from = torch::softplus(parts[5] + bias_[1]);
  const Tensor x = p.to.unsqueeze(-1) * p.x;
  p.written = (parts[2].unsqueeze(2).unsqueeze(-1) * x.unsqueeze(-2)).to(p.x.scalar_type());
  return p;
}

Tensor Chimera::edge_steps(const Tensor& lengths) const {
  // The number of bits of a length; exact, because a double holds any int32.
  const Tensor bits = std::get<1>(torch::frexp(lengths.to(torch::kFloat64))).to(torch::kInt64);
  return torch::softplus(edges_).index_select(0, bits - 1);
}

Tensor Chimera::read_out(const Projections& p, const Tensor& states) {
  const Tensor y = torch::matmul(p.read.unsqueeze(3), states).squeeze(3);
  const Tensor gated = (y + d_.unsqueeze(-1) * p.x).flatten(2) * torch::silu(p.z);
  return norm_->forward(gated).to(p.x.scalar_type());
}

Chimera::Edges Chimera::edges(int64_t time, const Packing& packing) {
  const int64_t length = packing ? std::max(length_, packing.longest(time)) : time;
  if (length != length_) {
    std::tie(row_ptr_, cols_) = row_list(config_.pattern.on(length));
    const Tensor counts = row_ptr_.diff();
    of_text_.targets = torch::repeat_interleave(torch::arange(length), counts);
    of_text_.sources = cols_;
    of_text_.lengths = of_text_.targets - cols_;
    of_text_.shares = counts.index_select(0, of_text_.targets);
    length_ = length;
  }
  if (!packing) return of_text_;
  // A sequence uses the first edges, as many as its own rows contain.
  const Tensor counts = row_ptr_.index_select(0, torch::tensor(packing.lengths(), torch::kInt64));
  const Tensor ends = counts.cumsum(0);
  const Tensor start = torch::repeat_interleave(packing.starts(), counts);
  const Tensor edge =
      torch::arange(start.size(0)) - torch::repeat_interleave(ends - counts, counts);
  const auto of_edge = [&](const Tensor& all) { return all.index_select(0, edge); };
  return {of_edge(of_text_.targets) + start, of_edge(of_text_.sources) + start,
          of_edge(of_text_.lengths), of_edge(of_text_.shares)};
}

Tensor Chimera::solve(const Projections& p, const Packing& packing) {
  const int64_t batch = p.x.size(0), length = p.x.size(1);
  const Edges e = edges(length, packing);
  const Tensor to = p.to.index_select(1, e.targets), from = p.from.index_select(1, e.sources);
  const Tensor a = torch::exp((to + from + edge_steps(e.lengths)) / -3) / e.shares.unsqueeze(-1);
  const Tensor beta = a.transpose(1, 2).to(p.x.scalar_type());
  const Tensor one = torch::ones({batch, config_.heads, length}, beta.options());
  return ops::glr(one, torch::zeros_like(beta), beta, p.written.flatten(3), {row_ptr_, cols_},
                  packing.cu_seqlens())
      .view_as(p.written);
}

Tensor Chimera::forward(const Tensor& x, Context& context) {
  const Projections p = project(shift_tokens(config_, x, context.packing));
  return out_(context.wanted(read_out(p, solve(p, context.packing))));
}

Tensor Chimera::prefill(const Tensor& x, State& state, Context& context) {
  // The operator requires an empty past.
  if (state.position > 0) return Mixer::prefill(x, state, context);
  const Projections p = project(shift_more_tokens(config_, x, state));
  const Tensor states = solve(p);
  cache_.extend(state, {states, p.from});
  state.position += x.size(1);
  return out_(read_out(p, states));
}

Tensor Chimera::step(const Tensor& x, State& state, Context&) {
  const Projections p = project(shift_tokens_step(config_, x, state));
  const std::vector<int32_t> row = cache_.tokens(state);
  Tensor s = p.written.squeeze(1);
  if (!row.empty()) {
    const Tensor lengths = state.position - torch::tensor(row);
    const Tensor steps = p.to + cache_.read(state, "from") + edge_steps(lengths);
    const Tensor a = torch::exp(steps / -3) / static_cast<double>(row.size());  // [B,reads,H]
    s = s + (a.unsqueeze(-1).unsqueeze(-1) * cache_.read(state, "S")).sum(1).to(s.scalar_type());
  }
  cache_.append(state, {s.unsqueeze(1), p.from});
  ++state.position;
  return out_(read_out(p, s.unsqueeze(1)).squeeze(1));
}

int64_t Chimera::state_bytes(int64_t t) const {
  return Mixer::state_bytes(t) + cache_.bytes(t, options());
}

MixerEntry chimera_entry() {
  return {"chimera",
          "S_i = sum_{j in S_i} A_ij S_j + dt_i B_i x_i^T, y_i = C_i S_i + D x_i",
          "|S_i|",
          "state cache(S)",
          "Lahoti et al. 2025 (arXiv 2510.12111)",
          [](config::Table& table, const BlockDefaults& defaults) {
            const HeadsConfig heads = read_heads_without_rope(table, defaults);
            ChimeraConfig config{heads, read_pattern(table, "k^2+1", defaults)};
            config.state = table.get_between("state", config.state, 1, kMostSize);
            return plan<Chimera>(config);
          }};
}

}  // namespace hopmix::nn
