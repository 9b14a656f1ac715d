#include "hopmix/bench/eager_chunks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace hopmix::bench {
namespace {

constexpr int64_t kChunk = 64, kSub = 16;
constexpr double kHidden = -std::numeric_limits<double>::infinity();

// The keys a query does not see: [n, n].
Tensor hidden(int64_t n) { return at::ones({n, n}, at::kBool).triu(1); }

// q k^T with e^(b_t - b_s) inside: [..., C, C] from q, k, b [..., C, D].
Tensor channel_scores(const Tensor& q, const Tensor& k, const Tensor& b) {
  const int64_t chunk = q.size(-2);
  std::vector<Tensor> rows;
  for (int64_t i = 0; i < chunk; i += kSub) {
    const int64_t sub = std::min(kSub, chunk - i);
    const auto from = [&](const Tensor& x, int64_t first) { return x.narrow(-2, first, sub); };
    const Tensor bi = from(b, i), qi = from(q, i), ki = from(k, i);
    const Tensor decay =
        (bi.unsqueeze(-2) - bi.unsqueeze(-3)).masked_fill(hidden(sub).unsqueeze(-1), kHidden).exp();
    std::vector<Tensor> parts;
    if (i > 0) {
      const Tensor start = b.narrow(-2, i - 1, 1);
      const Tensor before = k.narrow(-2, 0, i) * (start - b.narrow(-2, 0, i)).exp();
      parts.push_back(at::matmul(qi * (bi - start).exp(), before.mT()));
    }
    parts.push_back((qi.unsqueeze(-2) * ki.unsqueeze(-3) * decay).sum(-1));
    rows.push_back(at::constant_pad_nd(at::cat(parts, -1), {0, chunk - i - sub}));
  }
  return at::cat(rows, -2);
}

// [B,T,H,...] as [B, chunks, H, C, ...], padded with zeros.
Tensor split(const Tensor& x) {
  const int64_t length = x.size(1), chunk = std::min(kChunk, length);
  const int64_t chunks = (length + chunk - 1) / chunk;
  std::vector<int64_t> pads(2 * (x.dim() - 1), 0);
  pads.back() = chunks * chunk - length;
  const Tensor whole = pads.back() == 0 ? x : at::constant_pad_nd(x, pads);
  return whole.unflatten(1, {chunks, chunk}).transpose(2, 3);
}

}  // namespace

Tensor eager_linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor& log_decay) {
  const int64_t length = q.size(1), chunk = std::min(kChunk, length);
  const int64_t chunks = (length + chunk - 1) / chunk;
  Tensor qs = split(q) / std::sqrt(static_cast<double>(q.size(-1))), ks = split(k);
  const Tensor vs = split(v);
  Tensor scores, through;  // of a chunk, [..., C, C]; decays applied to the state before it
  if (log_decay.defined() && log_decay.dim() == 4) {
    const Tensor b = split(log_decay).cumsum(-2), last = b.narrow(-2, chunk - 1, 1);
    scores = channel_scores(qs, ks, b);
    qs = qs * b.exp();
    ks = ks * (last - b).exp();
    through = last.exp().mT();
  } else if (log_decay.defined()) {
    const Tensor b = split(log_decay).cumsum(-1), last = b.narrow(-1, chunk - 1, 1);
    const Tensor decay =
        (b.unsqueeze(-1) - b.unsqueeze(-2)).masked_fill(hidden(chunk), kHidden).exp();
    scores = at::matmul(qs, ks.mT()) * decay;
    qs = qs * b.exp().unsqueeze(-1);
    ks = ks * (last - b).exp().unsqueeze(-1);
    through = last.exp().unsqueeze(-1);
  } else {
    scores = at::matmul(qs, ks.mT()).masked_fill(hidden(chunk), 0);
  }
  const Tensor added = at::matmul(ks.mT(), vs);
  std::vector<Tensor> states = {at::zeros_like(added.select(1, 0))};
  for (int64_t n = 0; n + 1 < chunks; ++n) {
    const Tensor& state = states.back();
    const Tensor kept = through.defined() ? through.select(1, n) * state : state;
    states.push_back(kept + added.select(1, n));
  }
  const Tensor o = at::matmul(scores, vs) + at::matmul(qs, at::stack(states, 1));
  return o.transpose(2, 3).flatten(1, 2).narrow(1, 0, length);
}

Tensor eager_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
                        const Tensor& beta) {
  const int64_t length = q.size(1), chunk = std::min(kChunk, length);
  const Tensor qs = split(q) / std::sqrt(static_cast<double>(q.size(-1))), ks = split(k);
  const Tensor vs = split(v), betas = split(beta).unsqueeze(-1);
  Tensor decay = at::ones({chunk, chunk}, q.options()).tril(), from_start, to_end, whole;
  if (log_decay.defined()) {
    const Tensor b = split(log_decay).cumsum(-1), last = b.narrow(-1, chunk - 1, 1);
    decay = (b.unsqueeze(-1) - b.unsqueeze(-2)).masked_fill(hidden(chunk), kHidden).exp();
    from_start = b.exp().unsqueeze(-1);
    to_end = (last - b).exp().unsqueeze(-1);
    whole = last.exp().unsqueeze(-1);
  }
  const auto scaled = [](const Tensor& x, const Tensor& s) { return s.defined() ? s * x : x; };
  const Tensor scores = at::matmul(qs, ks.mT()) * decay;
  // U = x - y S for the state S before the chunk; one solve gives both for all chunks.
  const Tensor system = (betas * at::matmul(ks, ks.mT()) * decay).tril(-1);
  const Tensor right = betas * at::cat({vs, scaled(ks, from_start)}, -1);
  const at::ScalarType type = right.scalar_type();
  const at::ScalarType solved = type == at::kBFloat16 ? at::kFloat : type;
  const Tensor both = at::linalg_solve_triangular(
                          (system + at::eye(chunk, system.options())).to(solved), right.to(solved),
                          /*upper=*/false, /*left=*/true, /*unitriangular=*/true)
                          .to(type);
  const std::vector<Tensor> parts = both.split_with_sizes({v.size(-1), k.size(-1)}, -1);
  const Tensor queries = scaled(qs, from_start), keys = scaled(ks, to_end);
  Tensor state = at::zeros({q.size(0), q.size(2), k.size(-1), v.size(-1)}, q.options());
  std::vector<Tensor> outputs;
  for (int64_t n = 0; n < qs.size(1); ++n) {
    const auto at_chunk = [n](const Tensor& x) { return x.select(1, n); };
    const Tensor u = at_chunk(parts[0]) - at::matmul(at_chunk(parts[1]), state);
    outputs.push_back(at::matmul(at_chunk(queries), state) + at::matmul(at_chunk(scores), u));
    const Tensor kept = whole.defined() ? at_chunk(whole) * state : state;
    state = kept + at::matmul(at_chunk(keys).mT(), u);
  }
  return at::stack(outputs, 1).transpose(2, 3).flatten(1, 2).narrow(1, 0, length);
}

Tensor eager_log_linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Tensor& log_decay, const Tensor& level_scales) {
  const int64_t length = q.size(1);
  int64_t whole = kChunk;
  while (whole < length) whole *= 2;
  // [B,T,H,...] as [B,H,T,...], padded to a power of two.
  const auto pad = [&](const Tensor& x) {
    std::vector<int64_t> pads(2 * (x.dim() - 1), 0);
    pads.back() = whole - length;
    return at::constant_pad_nd(x, pads).transpose(1, 2);
  };
  const auto blocks = [&](const Tensor& x, int64_t size) { return x.unflatten(2, {-1, size}); };
  const Tensor qs = pad(q) / std::sqrt(static_cast<double>(q.size(-1))), ks = pad(k), vs = pad(v);
  const Tensor g = pad(log_decay), factors = pad(level_scales);

  // Within chunks: the level of a pair is the number of bits of the positions' xor.
  const Tensor places = at::arange(kChunk);
  const Tensor differ = at::bitwise_xor(places.unsqueeze(1), places.unsqueeze(0)).tril();
  const Tensor level = at::ceil(at::log2((differ + 1).to(at::kDouble))).to(at::kLong);
  const Tensor inside = blocks(factors, kChunk);
  const int64_t inside_levels = std::min<int64_t>(7, factors.size(-1));
  std::vector<int64_t> shape = inside.sizes().vec();
  shape.back() = kChunk;
  const Tensor tile = inside.narrow(-1, 0, inside_levels)
                          .gather(-1, level.clamp_max(inside_levels - 1).expand(shape));
  const Tensor b = blocks(g, kChunk).cumsum(-1), last = b.narrow(-1, kChunk - 1, 1);
  const Tensor decay =
      (b.unsqueeze(-1) - b.unsqueeze(-2)).masked_fill(hidden(kChunk), kHidden).exp();
  const Tensor scores = at::matmul(blocks(qs, kChunk), blocks(ks, kChunk).mT()) * decay * tile;
  Tensor o = at::matmul(scores, blocks(vs, kChunk)).flatten(2, 3);

  // Across chunks: every second block of `size` reads the state of the one before it.
  Tensor states =
      at::matmul((blocks(ks, kChunk) * (last - b).exp().unsqueeze(-1)).mT(), blocks(vs, kChunk));
  int64_t at_level = 7;
  for (int64_t size = kChunk; size < whole; size *= 2, ++at_level) {
    const auto readers = [&](const Tensor& x) { return blocks(x, 2 * size).narrow(3, size, size); };
    const Tensor sums = readers(g).cumsum(-1);  // since the start of the readers' block
    const Tensor weights = readers(factors.select(-1, at_level)) * sums.exp();
    const Tensor before = states.slice(2, 0, std::nullopt, 2);
    const Tensor read = at::matmul(readers(qs) * weights.unsqueeze(-1), before);
    o = o + at::cat({at::zeros_like(read), read}, 3).flatten(2, 3);
    const Tensor through = sums.narrow(-1, size - 1, 1).exp().unsqueeze(-1);
    states = through * before + states.slice(2, 1, std::nullopt, 2);
  }
  return o.transpose(1, 2).narrow(1, 0, length);
}

}  // namespace hopmix::bench
