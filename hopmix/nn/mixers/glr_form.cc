#include "hopmix/nn/mixers/glr_form.h"

#include <tuple>

#include "hopmix/base/error.h"
#include "hopmix/nn/token_attention.h"

namespace hopmix::nn {
namespace {

using Parts = GlrForm::Parts;

// From this length on, the dense recurrence is faster in blocks of matrix products than per read.
constexpr int64_t kWorthBlocks = 128;

// [B,1,H] -> [B,H,1], to weight the vectors or logits of a head.
Tensor per_head(const Tensor& x) { return x.squeeze(1).unsqueeze(-1); }

// Softmax attention to the entries cached under these names, and to `own`: [B,H,D].
Tensor read_past(const Tensor& q, const char* k, const char* v, PatternCache& cache,
                 const State& state, const std::optional<std::pair<Tensor, Tensor>>& own = {}) {
  return token_attention(q.squeeze(1), cache.held_rows(state, k), cache.held_rows(state, v),
                         cache.slots_read(state), own);
}

// A = B D + D' (appendix B.3): P is one softmax, z_i = (d_i + d'_i) v_i + gate_i sum_j P_ij z_j and
// y_i = z_i - d_i v_i.
struct Shared {
  Tensor q, k, v, gate, d, d_self;
  explicit Shared(const Parts& p) : q(p[0]), k(p[1]), v(p[2]), gate(p[3]), d(p[4]), d_self(p[5]) {}
};

std::vector<Tensor> shared_entries(const Parts& parts, const Tensor& y) {
  const Shared p(parts);
  return {p.k, y + p.d.unsqueeze(-1) * p.v};
}

Tensor shared_solve(const Parts& parts, const Pattern& pattern, PatternRows& rows,
                    const Packing& packing) {
  const Shared p(parts);
  const int64_t time = p.q.size(1);
  const auto& cu = packing.cu_seqlens();
  if (pattern.is_dense() && packing.longest(time) >= kWorthBlocks) {
    return ops::dense_recurrence(p.q, p.k, p.v, p.gate, p.d, p.d_self, {}, cu);
  }
  return ops::glr_attention(p.q, p.k, p.v, p.gate, p.d, p.d_self, rows.at(time, packing), {}, cu);
}

Tensor shared_step(const Parts& parts, PatternCache& cache, State& state) {
  const Shared p(parts);
  const Tensor v = p.v.squeeze(1), d = per_head(p.d);
  const Tensor read = read_past(p.q, "k", "z", cache, state);
  const Tensor z = (d + per_head(p.d_self)) * v + per_head(p.gate) * read;
  cache.append(state, {p.k, z.unsqueeze(1)});
  return z - d * v;
}

// A is a softmax over the pattern and the token itself, B a gated softmax with its own q and k.
struct Independent {
  Tensor q, k, v, q_in, k_in, gate;  // q and k for B, q_in and k_in for A
  explicit Independent(const Parts& p)
      : q(p[0]), k(p[1]), v(p[2]), q_in(p[3]), k_in(p[4]), gate(p[5]) {}
};

std::vector<Tensor> independent_entries(const Parts& parts, const Tensor& y) {
  const Independent p(parts);
  return {p.k, y, p.k_in, p.v};
}

// Y = (I - B)^{-1} (A X): the direct part is sparse attention; the solve is the shared form with
// D = 0 and D' = 1.
Tensor independent_solve(const Parts& parts, const Pattern&, PatternRows& rows,
                         const Packing& packing) {
  const Independent p(parts);
  const ops::PatternArg list = rows.at(p.q.size(1), packing);
  const auto& cu = packing.cu_seqlens();
  const Tensor direct =
      ops::sparse_attention(p.q_in, p.k_in, p.v, list, /*include_self=*/true, {}, cu);
  const Tensor zero = torch::zeros_like(p.gate), one = torch::ones_like(p.gate);
  return ops::glr_attention(p.q, p.k, direct, p.gate, zero, one, list, {}, cu);
}

Tensor independent_step(const Parts& parts, PatternCache& cache, State& state) {
  const Independent p(parts);
  const Tensor y = read_past(p.q_in, "k_in", "v", cache, state, std::pair(p.k_in, p.v)) +
                   per_head(p.gate) * read_past(p.q, "k", "z", cache, state);
  cache.append(state, independent_entries(parts, y.unsqueeze(1)));
  return y;
}

// One softmax over direct and recurrent terms together, with logits s_ij + d_j, d'_i, and s_ij +
// g_i or, if the gate is that of the token read, s_ij + g_j.
template <bool kGateOnRead>
Tensor normalized_solve(const Parts& parts, const Pattern&, PatternRows& rows,
                        const Packing& packing) {
  const Shared p(parts);
  return ops::glr_softmax(p.q, p.k, p.v, p.d, p.d_self, p.gate, rows.at(p.q.size(1), packing), {},
                          kGateOnRead, packing.cu_seqlens());
}

// The scores of the past [B,H,c], and the logits cached under `name` in the same shape.
std::pair<Tensor, Tensor> past_logits(const Tensor& q, const char* name, PatternCache& cache,
                                      const State& state) {
  const Tensor scores = token_scores(q.squeeze(1), cache.read(state, "k"));
  return {scores, cache.read(state, name).transpose(1, 2)};
}

std::vector<Tensor> normalized_entries(const Parts& parts, const Tensor& y) {
  const Shared p(parts);
  return {p.k, y, p.v, p.d};
}

Tensor normalized_step(const Parts& parts, PatternCache& cache, State& state) {
  const Shared p(parts);
  const auto [scores, direct] = past_logits(p.q, "d", cache, state);
  const Tensor weights = torch::softmax(
      torch::cat({per_head(p.d_self), scores + direct, scores + per_head(p.gate)}, -1), -1);
  const std::vector<Tensor> part =
      weights.split_with_sizes({1, scores.size(-1), scores.size(-1)}, -1);
  const Tensor y = part[0] * p.v.squeeze(1) + token_sum(part[1], cache.read(state, "v")) +
                   token_sum(part[2], cache.read(state, "z"));
  cache.append(state, normalized_entries(parts, y.unsqueeze(1)));
  return y;
}

// e^{d_j} v_j + e^{g_j} y_j = e^{c_j} u_j.
std::vector<Tensor> gate_on_read_entries(const Parts& parts, const Tensor& y) {
  const Shared p(parts);
  const Tensor direct = torch::sigmoid(p.d - p.gate).unsqueeze(-1);
  return {p.k, direct * p.v + (1 - direct) * y, torch::logaddexp(p.d, p.gate)};
}

Tensor gate_on_read_step(const Parts& parts, PatternCache& cache, State& state) {
  const Shared p(parts);
  const auto [scores, past] = past_logits(p.q, "c", cache, state);
  const Tensor weights = torch::softmax(torch::cat({per_head(p.d_self), scores + past}, -1), -1);
  const Tensor y = weights.narrow(-1, 0, 1) * p.v.squeeze(1) +
                   token_sum(weights.slice(-1, 1), cache.read(state, "u"));
  cache.append(state, gate_on_read_entries(parts, y.unsqueeze(1)));
  return y;
}

}  // namespace

// z is the solution of the recurrence, which is y itself unless shared.
const std::vector<GlrForm>& glr_forms() {
  static const std::vector<GlrForm> forms = {
      GlrForm("shared", {0, 1}, 3, 3, false, {"k", "z"}, {}, shared_entries, shared_solve,
              shared_step),
      GlrForm("independent", {0, 1, 3, 4}, 5, 1, false, {"k", "z", "k_in", "v"}, {},
              independent_entries, independent_solve, independent_step),
      GlrForm("normalized", {0, 1}, 3, 3, true, {"k", "z", "v"}, {"d"}, normalized_entries,
              normalized_solve<false>, normalized_step),
      GlrForm("normalized_read", {0, 1}, 3, 3, true, {"k", "u"}, {"c"}, gate_on_read_entries,
              normalized_solve<true>, gate_on_read_step)};
  return forms;
}

const GlrForm& find_glr_form(const std::string& name) {
  std::string names;
  for (const GlrForm& form : glr_forms()) {
    if (form.name == name) return form;
    names += (names.empty() ? "" : ", ") + std::string(form.name);
  }
  throw Error("coefficients = '" + name + "': must be one of " + names);
}

}  // namespace hopmix::nn
