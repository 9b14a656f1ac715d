#include "hopmix/nn/mixers/diagonal_ssm.h"

#include <algorithm>

#include "hopmix/nn/recurrent_state.h"
#include "hopmix/nn/state_space.h"
#include "hopmix/nn/token_shift.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {

constexpr int64_t kPiece = 64;

namespace {

// Divides tokens into pieces; each sequence starts a new piece.
class Pieces {
 public:
  Pieces(int64_t time, const Packing& packing)
      : size(std::clamp<int64_t>(packing.longest(time), 1, kPiece)),
        a_row((time + size - 1) / size) {
    if (!packing) return;
    std::vector<int64_t> begins = {0};
    for (const int64_t length : packing.lengths()) {
      begins.push_back(begins.back() + (length + size - 1) / size);
    }
    a_row = begins.back();
    cu_seqlens = torch::tensor(begins, torch::kInt64);
    firsts = cu_seqlens->slice(0, 0, -1);
    const Tensor lengths = torch::tensor(packing.lengths(), torch::kInt64);
    places_ = packing.positions(time) + torch::repeat_interleave(firsts * size, lengths, 0, time);
  }

  /// [B,T,E] -> [B,a_row,size,E], zero-padded.
  Tensor lay_out(const Tensor& u) const {
    const int64_t batch = u.size(0), width = u.size(2), all = a_row * size;
    if (places_.defined()) {
      return torch::zeros({1, all, width}, u.options())
          .index_copy(1, places_, u)
          .view({1, a_row, size, width});
    }
    const Tensor padding = torch::zeros({batch, all - u.size(1), width}, u.options());
    return torch::cat({u, padding}, 1).view({batch, a_row, size, width});
  }

  /// [B,a_row * size,E] -> [B,T,E], tokens in order.
  Tensor take_up(const Tensor& y, int64_t time) const {
    return places_.defined() ? y.index_select(1, places_) : y.narrow(1, 0, time);
  }

  int64_t size, a_row;
  std::optional<Tensor> cu_seqlens;  // of pieces, if packed
  Tensor firsts;                     // the first piece of each sequence, if packed

 private:
  Tensor places_;
};

}  // namespace

DiagonalSsm::DiagonalSsm(const DiagonalSsmConfig& config) : config_(config) {
  check_heads(shift());
  value_ = register_module("value", linear(shift().input_width(), config.width));
  out_ = register_module("out", linear(config.width, config.width));
  log_dt_ = register_parameter("log_dt", random_step_sizes(config.width).log());
  check_weight({config.width, config.state});
  c_ = register_parameter("c", torch::randn({config.width, config.state}));
  d_ = register_parameter("d", torch::ones(config.width));
  keep(token_shift_state(shift()));
  keep({{"h", {{config.width, config.state}, StateType::kSums}}});
}

std::pair<Tensor, Tensor> DiagonalSsm::rates() const {
  const Tensor dt = as_state(log_dt_).exp().unsqueeze(1);
  const Tensor a = -torch::arange(1, config_.state + 1, dt.options());
  const Tensor rate = dt * a;
  return {rate, as_state(c_) * torch::expm1(rate) / a};
}

// With k_l = sum_s w_s exp(l rate_s): inside a piece, y = (the lower triangle of k_{t-s}) u, plus
// the decayed state from before the piece, which contains every token of earlier pieces.
Tensor DiagonalSsm::convolve(const Tensor& u, const Packing& packing) const {
  const int64_t batch = u.size(0), time = u.size(1), width = u.size(2), states = config_.state;
  const Pieces layout(time, packing);
  const int64_t piece = layout.size, pieces = layout.a_row;
  const auto [rate, weights] = rates();
  const Tensor powers =
      (rate.unsqueeze(2) * torch::arange(piece + 1, u.options())).exp();  // [E,S,piece + 1]
  const Tensor weighted = weights.unsqueeze(2) * powers;

  const Tensor rows =
      layout.lay_out(u).permute({3, 0, 1, 2}).reshape({width, batch * pieces, piece});
  const Tensor token = torch::arange(piece, u.options().dtype(torch::kInt64));
  const Tensor distance = (token.unsqueeze(0) - token.unsqueeze(1)).clamp_min(0).flatten();
  const Tensor toeplitz =
      weighted.sum(1).index_select(1, distance).view({width, piece, piece}).triu();
  Tensor y = torch::bmm(rows, toeplitz);

  if (pieces > 1) {
    const Tensor entered = torch::bmm(rows, powers.narrow(2, 0, piece).flip(2).transpose(1, 2));
    const Tensor input = as_state(entered.view({width, batch, pieces, states}))
                             .permute({1, 2, 0, 3})
                             .reshape({batch, pieces, width * states});
    const Tensor decay = powers.select(2, piece).reshape({1, 1, -1}).expand_as(input);
    const Tensor h = std::get<0>(ops::linear_recurrence(decay, input, {}, layout.cu_seqlens));
    Tensor before =
        torch::cat({torch::zeros_like(h.narrow(1, 0, 1)), h.narrow(1, 0, pieces - 1)}, 1);
    if (packing) before = before.index_fill(1, layout.firsts, 0);
    before = before.view({batch, pieces, width, states})
                 .permute({2, 0, 1, 3})
                 .reshape({width, batch * pieces, states});
    y = y + torch::bmm(before, weighted.narrow(2, 1, piece));
  }
  return layout.take_up(y.view({width, batch, pieces * piece}).permute({1, 2, 0}), time);
}

Tensor DiagonalSsm::forward(const Tensor& x, Context& context) {
  const Tensor u = as_state(value_(shift_tokens(shift(), x, context.packing)));
  const Tensor y = context.wanted(convolve(u, context.packing)) + as_state(d_) * context.wanted(u);
  return out_(torch::gelu(y).to(x.scalar_type()));
}

Tensor DiagonalSsm::step(const Tensor& x, State& state, Context&) {
  const Tensor u = as_state(value_(shift_tokens_step(shift(), x, state))).squeeze(1);
  const auto [rate, weights] = rates();
  Tensor& h = state.tensors["h"];
  h = rate.exp() * h + u.unsqueeze(2);
  const Tensor y = (weights * h).sum(2) + as_state(d_) * u;
  ++state.position;
  return out_(torch::gelu(y).to(x.scalar_type()));
}

// Piece by piece: the contribution of its own tokens, and what remains of the state before it.
Tensor DiagonalSsm::prefill(const Tensor& x, State& state, Context&) {
  const Tensor all = as_state(value_(shift_more_tokens(shift(), x, state)));
  const auto [rate, weights] = rates();
  Tensor& h = state.tensors["h"];
  std::vector<Tensor> outputs;
  for (const Tensor& u : all.split(kPiece, 1)) {
    const int64_t time = u.size(1);
    const Tensor powers =
        (rate.unsqueeze(2) * torch::arange(time + 1, u.options())).exp();  // [E,S,time + 1]
    const Tensor faded = weights.unsqueeze(2) * powers.narrow(2, 1, time);
    const Tensor before = torch::einsum("bes,est->bte", {h, faded});
    outputs.push_back(convolve(u) + before + as_state(d_) * u);
    h = powers.select(2, time) * h +
        torch::einsum("bte,est->bes", {u, powers.narrow(2, 0, time).flip(2)});
  }
  h = h.contiguous();
  state.position += x.size(1);
  return out_(torch::gelu(torch::cat(outputs, 1)).to(x.scalar_type()));
}

MixerEntry diagonal_ssm_entry() {
  return {"diagonal_ssm",
          "h_t = exp(dt A) h_{t-1} + (exp(dt A) - 1) / A u_t, y_t = C . h_t + D u_t",
          "S",
          "S",
          "Gu et al. 2022",
          [](config::Table& table, const BlockDefaults& defaults) {
            DiagonalSsmConfig config;
            config.width = defaults.width;
            config.state = table.get_between("state", config.state, 1, kMostSize);
            config.token_shift = table.get("token_shift", defaults.token_shift);
            return plan<DiagonalSsm>(config);
          }};
}

}  // namespace hopmix::nn
