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

// What a query does not see of the keys: [n, n].
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

}  // namespace

Tensor eager_linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor& log_decay) {
  const int64_t length = q.size(1), chunk = std::min(kChunk, length);
  const int64_t chunks = (length + chunk - 1) / chunk;
  // [B, chunks, H, C, ...], padded with zeros.
  const auto split = [&](const Tensor& x) {
    std::vector<int64_t> pads(2 * (x.dim() - 1), 0);
    pads.back() = chunks * chunk - length;
    const Tensor whole = pads.back() == 0 ? x : at::constant_pad_nd(x, pads);
    return whole.unflatten(1, {chunks, chunk}).transpose(2, 3);
  };
  Tensor qs = split(q) / std::sqrt(static_cast<double>(q.size(-1))), ks = split(k);
  const Tensor vs = split(v);
  Tensor scores, through;  // of a chunk [..., C, C]; what its decays leave of the state before it
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

}  // namespace hopmix::bench
