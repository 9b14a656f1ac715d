#include "hopmix/bench/cases.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "hopmix/base/error.h"
#include "hopmix/base/nearest.h"
#include "hopmix/bench/eager_chunks.h"
#include "hopmix/bench/peers.h"
#include "hopmix/nn/pattern_rows.h"
#include "hopmix/ops/fenwick.h"
#include "hopmix/ops/ops.h"
#include "hopmix/pattern/pattern.h"

namespace hopmix::bench {
namespace {

using Inputs = const std::vector<Tensor>&;

// q, k, v.
std::vector<Tensor> qkv(const Shape& s) {
  const std::vector<int64_t> size = {s.batch, s.length, s.heads, s.width};
  return {at::randn(size), at::randn(size), at::randn(size)};
}

// q, k, v and `count` gates per head, in (0, 1).
std::vector<Tensor> qkv_gates(const Shape& s, int count) {
  std::vector<Tensor> inputs = qkv(s);
  for (int i = 0; i < count; ++i) inputs.push_back(at::rand({s.batch, s.length, s.heads}));
  return inputs;
}

// Transposes inputs of the operators to [B,H,T,D], the layout of the peers.
std::vector<Tensor> heads_first(std::vector<Tensor> inputs) {
  for (Tensor& x : inputs) x = x.transpose(1, 2).contiguous();
  return inputs;
}

// The pattern as a layer passes it: a list of rows if that is small and wanted.
class Rows {
 public:
  Rows(const Case& which, int64_t length) : spec_(which.pattern) {
    if (which.on_the_fly) return;
    nn::PatternRows layer{Pattern(spec_, length)};
    const ops::PatternArg arg = layer.at(length);
    row_ptr_ = arg.row_ptr;
    cols_ = arg.cols;
  }
  ops::PatternArg arg() const {
    if (row_ptr_.defined()) return {row_ptr_, cols_};
    return spec_;
  }

 private:
  std::string spec_;
  Tensor row_ptr_, cols_;
};

Problem glr_attention(const Shape& s, const Case& which) {
  return {qkv_gates(s, 3), [rows = Rows(which, s.length)](Inputs x) {
            return ops::glr_attention(x[0], x[1], x[2], x[3], x[4], x[5], rows.arg());
          }};
}

Problem sparse_attention(const Shape& s, const Case& which) {
  return {qkv(s), [rows = Rows(which, s.length)](Inputs x) {
            return ops::sparse_attention(x[0], x[1], x[2], rows.arg(), /*include_self=*/true);
          }};
}

Problem glr(const Shape& s, const Case& which) {
  const int64_t reads = which.reads(s.length);
  // As in a trained layer, rows of beta sum to less than 1, so that y stays bounded.
  const double bound =
      static_cast<double>(s.length) / static_cast<double>(std::max(reads, int64_t{1}));
  return {{at::rand({s.batch, s.heads, s.length}), at::rand({s.batch, s.heads, reads}) * bound,
           at::rand({s.batch, s.heads, reads}) * bound,
           at::randn({s.batch, s.length, s.heads, s.width})},
          [rows = Rows(which, s.length)](Inputs x) {
            return ops::glr(x[0], x[1], x[2], x[3], rows.arg());
          }};
}

Problem linear_recurrence(const Shape& s, const Case&) {
  const std::vector<int64_t> size = {s.batch, s.length, s.heads * s.width};
  return {{at::rand(size), at::randn(size)}, [s](Inputs x) {
            return std::get<0>(ops::linear_recurrence(x[0], x[1])).unflatten(2, {s.heads, s.width});
          }};
}

// Mamba's sizes: 16 numbers per channel, steps of 0.001 to 0.1.
std::vector<Tensor> scan_inputs(const Shape& s) {
  constexpr int64_t kStates = 16;
  const int64_t width = s.heads * s.width;
  const std::vector<int64_t> size = {s.batch, s.length, width}, map = {s.batch, s.length, kStates};
  return {at::randn(size), at::rand(size) * 0.1 + 0.001,
          at::arange(1, kStates + 1, at::kFloat).neg().repeat({width, 1}), at::randn(map),
          at::randn(map)};
}

Problem selective_scan(const Shape& s, const Case&) {
  return {scan_inputs(s), [s](Inputs x) {
            // Parameters are float32 even for bfloat16 inputs.
            const Tensor a = x[0].scalar_type() == at::kBFloat16 ? x[2].to(at::kFloat) : x[2];
            const auto y = std::get<0>(ops::selective_scan(x[0], x[1], a, x[3], x[4]));
            return y.unflatten(2, {s.heads, s.width});
          }};
}

Problem selective_scan_steps(const Shape& s, const Case&) {
  return {scan_inputs(s), [s](Inputs x) {
            const Tensor y = selective_scan_by_steps(x[0], x[1], x[2], x[3], x[4]);
            return y.unflatten(2, {s.heads, s.width});
          }};
}

Problem sliding_window_recurrence(const Shape& s, const Case&) {
  const std::vector<int64_t> size = {s.batch, s.length, s.heads * s.width};
  return {{at::rand(size), at::randn(size)}, [s](Inputs x) {
            const auto y = std::get<0>(ops::sliding_window_recurrence(x[0], x[1], /*block=*/16));
            return y.unflatten(2, {s.heads, s.width});
          }};
}

Problem short_convolution(const Shape& s, const Case&) {
  const int64_t width = s.heads * s.width;
  return {{at::randn({s.batch, s.length, width}), at::randn({width, 4}), at::randn({width})},
          [s](Inputs x) {
            const Tensor y = ops::short_convolution(x[0], x[1], x[2], /*silu=*/true);
            return y.unflatten(2, {s.heads, s.width});
          }};
}

Problem glr_softmax(const Shape& s, const Case& which) {
  return {qkv_gates(s, 3), [rows = Rows(which, s.length)](Inputs x) {
            return ops::glr_softmax(x[0], x[1], x[2], x[3], x[4], x[5], rows.arg());
          }};
}

Problem glr_normalized(const Shape& s, const Case& which) {
  const int64_t reads = which.reads(s.length);
  return {{at::randn({s.batch, s.heads, s.length}), at::randn({s.batch, s.heads, reads}),
           at::randn({s.batch, s.heads, reads}), at::randn({s.batch, s.length, s.heads, s.width})},
          [rows = Rows(which, s.length)](Inputs x) {
            return std::get<0>(ops::glr_normalized(x[0], x[1], x[2], x[3], rows.arg()));
          }};
}

Problem dense_recurrence(const Shape& s, const Case&) {
  return {qkv_gates(s, 3),
          [](Inputs x) { return ops::dense_recurrence(x[0], x[1], x[2], x[3], x[4], x[5]); }};
}

// q, k, v and log decays in (-1, 0): none, one per head, or one per channel.
enum class Decay { kNone, kHead, kChannel };
std::vector<Tensor> qkv_decay(const Shape& s, Decay decay) {
  std::vector<Tensor> inputs = qkv(s);
  if (decay == Decay::kHead) inputs.push_back(-at::rand({s.batch, s.length, s.heads}));
  if (decay == Decay::kChannel) {
    inputs.push_back(-at::rand({s.batch, s.length, s.heads, s.width}));
  }
  return inputs;
}

Problem linear_attention(const Shape& s, const Case&) {
  return {qkv_decay(s, Decay::kNone),
          [](Inputs x) { return std::get<0>(ops::linear_attention(x[0], x[1], x[2])); }};
}

Problem ssd(const Shape& s, const Case&) {
  return {qkv_decay(s, Decay::kHead),
          [](Inputs x) { return std::get<0>(ops::ssd(x[0], x[1], x[2], x[3])); }};
}

Problem gla(const Shape& s, const Case&) {
  return {qkv_decay(s, Decay::kChannel),
          [](Inputs x) { return std::get<0>(ops::gla(x[0], x[1], x[2], x[3])); }};
}

// q and k with norm 1 per head, v, log decays per head if `decay` says so, and beta in (0, 1).
std::vector<Tensor> delta_inputs(const Shape& s, Decay decay) {
  std::vector<Tensor> inputs = qkv_decay(s, decay);
  inputs[1] = inputs[1] / inputs[1].norm(2, -1, /*keepdim=*/true);
  inputs.push_back(at::rand({s.batch, s.length, s.heads}));
  return inputs;
}

Problem delta_rule(const Shape& s, const Case&) {
  return {delta_inputs(s, Decay::kNone),
          [](Inputs x) { return std::get<0>(ops::delta_rule(x[0], x[1], x[2], x[3])); }};
}

Problem gated_delta_rule(const Shape& s, const Case&) {
  return {delta_inputs(s, Decay::kHead), [](Inputs x) {
            return std::get<0>(ops::gated_delta_rule(x[0], x[1], x[2], x[3], x[4]));
          }};
}

Problem kda(const Shape& s, const Case&) {
  return {delta_inputs(s, Decay::kChannel),
          [](Inputs x) { return std::get<0>(ops::kda(x[0], x[1], x[2], x[3], x[4])); }};
}

// The shape as one row of sequences of 2 tokens, and their ends.
Shape one_row(const Shape& s) { return {1, s.heads, s.width, s.batch * s.length}; }

Tensor ends_of_pairs(const Shape& s) {
  const int64_t tokens = s.batch * s.length;
  return at::arange(0, tokens + 2, 2, at::kLong).clamp_max(tokens);
}

Problem packed_ssd(const Shape& s, const Case&) {
  return {qkv_decay(one_row(s), Decay::kHead), [s, ends = ends_of_pairs(s)](Inputs x) {
            const auto o = std::get<0>(ops::ssd(x[0], x[1], x[2], x[3], {}, {}, ends));
            return o.view({s.batch, s.length, s.heads, s.width});
          }};
}

Problem packed_gated_delta_rule(const Shape& s, const Case&) {
  return {delta_inputs(one_row(s), Decay::kHead), [s, ends = ends_of_pairs(s)](Inputs x) {
            const auto o =
                std::get<0>(ops::gated_delta_rule(x[0], x[1], x[2], x[3], x[4], {}, {}, ends));
            return o.view({s.batch, s.length, s.heads, s.width});
          }};
}

Problem packed_glr_attention(const Shape& s, const Case& which) {
  return {qkv_gates(one_row(s), 3), [s, spec = which.pattern, ends = ends_of_pairs(s)](Inputs x) {
            const Tensor y = ops::glr_attention(x[0], x[1], x[2], x[3], x[4], x[5], spec, {}, ends);
            return y.view({s.batch, s.length, s.heads, s.width});
          }};
}

template <Decay kDecay>
Problem eager_delta(const Shape& s, const Case&) {
  return {delta_inputs(s, kDecay), [](Inputs x) {
            return eager_delta_rule(x[0], x[1], x[2], kDecay == Decay::kNone ? Tensor() : x[3],
                                    x.back());
          }};
}

template <Decay kDecay>
Problem eager(const Shape& s, const Case&) {
  return {qkv_decay(s, kDecay), [](Inputs x) {
            return eager_linear_attention(x[0], x[1], x[2],
                                          kDecay == Decay::kNone ? Tensor() : x[3]);
          }};
}

// Appends factors in (0, 1) to the given inputs.
std::vector<Tensor> with_level_scales(const Shape& s, std::vector<Tensor> inputs) {
  inputs.push_back(at::rand({s.batch, s.length, s.heads, ops::fenwick_levels(s.length)}));
  return inputs;
}

Problem log_linear_attention(const Shape& s, const Case&) {
  return {with_level_scales(s, qkv_decay(s, Decay::kHead)),
          [](Inputs x) { return ops::log_linear_attention(x[0], x[1], x[2], x[3], x[4]); }};
}

Problem log_linear_delta_rule(const Shape& s, const Case&) {
  return {with_level_scales(s, delta_inputs(s, Decay::kHead)),
          [](Inputs x) { return ops::log_linear_delta_rule(x[0], x[1], x[2], x[3], x[4], x[5]); }};
}

Problem eager_log_linear(const Shape& s, const Case&) {
  return {with_level_scales(s, qkv_decay(s, Decay::kHead)),
          [](Inputs x) { return eager_log_linear_attention(x[0], x[1], x[2], x[3], x[4]); }};
}

constexpr double kGamma = 0.9;  // the layers' default

Problem chacal(const Shape& s, const Case&) {
  return {qkv(s), [](Inputs x) { return ops::chacal(x[0], x[1], x[2], kGamma); }};
}

Problem block_chacal(const Shape& s, const Case&) {
  return {qkv(s), [](Inputs x) { return ops::block_chacal(x[0], x[1], x[2], kGamma); }};
}

Problem rms_norm(const Shape& s, const Case&) {
  const int64_t width = s.heads * s.width;
  return {{at::randn({s.batch, s.length, width}), at::rand({width})}, [s](Inputs x) {
            return ops::rms_norm(x[0], x[1]).unflatten(2, {s.heads, s.width});
          }};
}

// For each token, `count` of the tokens up to it, or before it if `strictly_earlier`, in no
// particular order, as a search returns them.
Tensor retrieved(const Shape& s, int64_t count, bool strictly_earlier) {
  const Tensor visible = at::arange(s.length).add(strictly_earlier ? 0 : 1).view({1, -1, 1, 1});
  const Tensor draws = at::rand({s.batch, s.length, s.heads, count});
  return at::where(visible > 0, (draws * visible).floor(), at::scalar_tensor(-1)).to(at::kInt);
}

Problem gather_attention(const Shape& s, const Case&) {
  return {qkv(s), [indices = retrieved(s, 32, /*strictly_earlier=*/false)](Inputs x) {
            return ops::gather_attention(x[0], x[1], x[2], indices);
          }};
}

Problem mura_attention(const Shape& s, const Case&) {
  return {qkv(s), [indices = retrieved(s, 8, /*strictly_earlier=*/false)](Inputs x) {
            const Tensor links = ops::neighborhood(indices, {8, 1, 1, 1}, /*cumulative=*/true);
            return ops::gather_attention(x[0], x[1], x[2], links);
          }};
}

Problem retrieved_recurrence(const Shape& s, const Case&) {
  constexpr int64_t kHops = 3;
  return {
      qkv_gates(s, 1), [indices = retrieved(s, 8, /*strictly_earlier=*/true)](Inputs x) {
        return ops::retrieved_recurrence(x[0], x[1], x[2], x[3], indices, kHops).select(3, kHops);
      }};
}

Problem retrieved_glr(const Shape& s, const Case&) {
  return {qkv_gates(s, 3), [indices = retrieved(s, 8, /*strictly_earlier=*/true)](Inputs x) {
            return ops::retrieved_glr(x[0], x[1], x[2], x[3], x[4], x[5], indices);
          }};
}

Problem sdpa(const Shape& s, const Case&) {
  return {heads_first(qkv(s)), [](Inputs x) { return causal_attention(x[0], x[1], x[2]); }};
}

Problem attention(const Shape& s, const Case&) {
  return {qkv(s), [](Inputs x) { return ops::attention(x[0], x[1], x[2]); }};
}

constexpr int64_t kSelected = 32;  // positions per token and head

Problem attention_topk(const Shape& s, const Case&) {
  return {qkv(s),
          [](Inputs x) { return std::get<0>(ops::attention_topk(x[0], x[1], x[2], kSelected)); }};
}

Problem attention_by_scores(const Shape& s, const Case&) {
  return {heads_first(qkv(s)),
          [hidden = at::ones({s.length, s.length}, at::kBool).triu(1)](Inputs x) {
            return std::get<0>(topk_by_scores(x[0], x[1], x[2], hidden, kSelected));
          }};
}

Problem solve(const Shape& s, const Case&) {
  return {heads_first(qkv_gates(s, 3)), [mask = DenseSolveMask(s.length)](Inputs x) {
            return dense_solve(x[0], x[1], x[2], x[3], x[4], x[5], mask);
          }};
}

// One operator on several patterns: a line of the list below.
struct Group {
  std::string name, computes;
  Problem (*make)(const Shape& shape, const Case& which);
  std::vector<std::string> patterns = {""};
  Traits traits = {};
};

// To add an operator, define its problem above and add a line here.
std::vector<Group> groups() {
  return {
      {"glr_attention",
       "recurrence with gated softmax coefficients",
       glr_attention,
       {"dense", "2^k", "k^2+1", "cached(2^k)", "cached(k^2+1)", "window(12)"}},
      {"glr",
       "recurrence with given coefficients",
       glr,
       {"k^2+1"},
       {.growth = Growth::kCoefficients}},
      {"sparse_attention",
       "softmax attention on a pattern",
       sparse_attention,
       {"k^2+1"},
       {.includes_self = true}},
      {"glr_softmax",
       "recurrence with one softmax over direct and recurrent terms",
       glr_softmax,
       {"2^k", "k^2+1", "cached(k^2+1)"}},
      {"glr_normalized",
       "recurrence divided by its result on ones, in the log domain",
       glr_normalized,
       {"k^2+1"},
       {.growth = Growth::kCoefficients}},
      {"dense_recurrence",
       "glr_attention on dense, in blocks",
       dense_recurrence,
       {""},
       {.growth = Growth::kQuadraticTime}},
      {"chacal",
       "chains of attention reads, in blocks",
       chacal,
       {""},
       {.growth = Growth::kQuadraticTime}},
      {"block_chacal", "the same, with summaries across blocks", block_chacal},
      {"linear_recurrence", "y_t = a_t y_{t-1} + x_t per channel", linear_recurrence},
      {"linear_attention", "S_t = S_{t-1} + k_t v_t^T, o_t = q_t S_t, in chunks", linear_attention},
      {"ssd", "the same with a decay per head", ssd},
      {"gla", "the same with a decay per channel", gla},
      {"selective_scan", "the recurrence of Mamba, 16 numbers per channel", selective_scan},
      {"sliding_window_recurrence", "linear_recurrence cut off two blocks of 16 back",
       sliding_window_recurrence},
      {"short_convolution", "depthwise convolution over 4 tokens, with SiLU", short_convolution},
      {"rms_norm", "root-mean-square normalization", rms_norm},
      {"gather_attention", "softmax attention to 32 retrieved tokens", gather_attention},
      {"mura_attention", "the same on the neighborhood (8,1,1,1)", mura_attention},
      {"retrieved_recurrence", "3 hops over 8 retrieved tokens", retrieved_recurrence},
      {"retrieved_glr", "glr_attention on 8 retrieved tokens", retrieved_glr},
      {"selective_scan_steps",
       "selective_scan token by token in PyTorch",
       selective_scan_steps,
       {""},
       {.by_default = false}},
      {kAttention,
       "PyTorch's causal scaled_dot_product_attention",
       sdpa,
       {""},
       {.growth = Growth::kQuadraticTime, .is_peer = true, .heads_first = true}},
      {"attention",
       "causal softmax attention, in blocks",
       attention,
       {""},
       {.growth = Growth::kQuadraticTime}},
      {"attention_topk",
       "causal attention and the 32 best positions of each token",
       attention_topk,
       {""},
       {.growth = Growth::kQuadraticTime}},
      {"topk_by_scores",
       "the same with PyTorch's matmul, softmax and topk",
       attention_by_scores,
       {""},
       {.growth = Growth::kQuadraticMemory, .heads_first = true, .by_default = false}},
      {kDenseSolve,
       "glr_attention on dense with PyTorch's softmax and solve_triangular",
       solve,
       {""},
       {.growth = Growth::kQuadraticMemory, .is_peer = true, .heads_first = true}},
      {"delta_rule", "S_t = S_{t-1} + beta_t k_t (v_t - S_{t-1}^T k_t)^T, in chunks", delta_rule},
      {"gated_delta_rule", "the same with a decay per head", gated_delta_rule},
      {"kda", "the same with a decay per key channel", kda},
      {"log_linear_attention", "ssd with a factor for each bucket of the past, in chunks",
       log_linear_attention},
      {"log_linear_delta_rule", "gated_delta_rule with the same factors", log_linear_delta_rule},
      {"eager_log_linear_attention",
       "log_linear_attention in chunks, in PyTorch",
       eager_log_linear,
       {""},
       {.by_default = false}},
      {"eager_delta_rule",
       "delta_rule in chunks, in PyTorch",
       eager_delta<Decay::kNone>,
       {""},
       {.by_default = false}},
      {"eager_gated_delta_rule",
       "gated_delta_rule in chunks, in PyTorch",
       eager_delta<Decay::kHead>,
       {""},
       {.by_default = false}},
      {"eager_linear_attention",
       "linear_attention in chunks, in PyTorch",
       eager<Decay::kNone>,
       {""},
       {.by_default = false}},
      {"eager_ssd", "ssd in chunks, in PyTorch", eager<Decay::kHead>, {""}, {.by_default = false}},
      {"eager_gla",
       "gla in chunks, in PyTorch",
       eager<Decay::kChannel>,
       {""},
       {.by_default = false}},
      {"packed_ssd",
       "ssd on packed sequences of 2 tokens",
       packed_ssd,
       {""},
       {.by_default = false}},
      {"packed_gated_delta_rule",
       "gated_delta_rule on packed sequences of 2 tokens",
       packed_gated_delta_rule,
       {""},
       {.by_default = false}},
      {"packed_glr_attention",
       "glr_attention on packed sequences of 2 tokens",
       packed_glr_attention,
       {"k^2+1"},
       {.by_default = false}},
      {kLong,
       "glr_attention with rows made as they are read",
       glr_attention,
       {"2^k", "k^2+1", "cached(2^k)", "cached(k^2+1)", "window(12)"},
       {.by_default = false, .on_the_fly = true}},
  };
}

}  // namespace

int64_t Case::longest() const {
  switch (growth) {
    case Growth::kCoefficients:
      return int64_t{1} << 16;
    case Growth::kQuadraticTime:
      return int64_t{1} << 15;
    case Growth::kQuadraticMemory:
      return int64_t{1} << 13;
    default:
      return std::numeric_limits<int64_t>::max();
  }
}

const char* Case::limit_reason() const {
  switch (growth) {
    case Growth::kCoefficients:
      return "one coefficient per read";
    case Growth::kQuadraticTime:
      return "time grows quadratically";
    case Growth::kQuadraticMemory:
      return "memory grows quadratically";
    default:
      return "";
  }
}

int64_t Case::reads(int64_t length) const {
  if (pattern.empty()) return 0;
  int64_t count = includes_self ? length : 0;
  if (pattern == "dense") return count + length * (length - 1) / 2;
  const Pattern parsed(pattern, length);
  std::vector<int32_t> cols;
  for (int64_t i = 0; i < length; ++i) {
    parsed.row(i, cols);
    count += static_cast<int64_t>(cols.size());
  }
  return count;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> list = [] {
    std::vector<Case> all;
    for (const Group& group : groups()) {
      for (const std::string& pattern : group.patterns) {
        Case one;
        static_cast<Traits&>(one) = group.traits;
        one.name = group.name + (pattern.empty() ? "" : " " + pattern);
        one.group = group.name;
        one.pattern = pattern;
        one.computes = group.computes;
        one.make = group.make;
        if (pattern == "dense") one.growth = Growth::kQuadraticTime;
        all.push_back(one);
      }
    }
    return all;
  }();
  return list;
}

std::vector<Case> select_cases(const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const Case& one : cases()) {
    for (const std::string& name : {one.group, one.name}) {
      if (std::find(known.begin(), known.end(), name) == known.end()) known.push_back(name);
    }
  }
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw Error("unknown benchmark '" + name + "'" + suggestion(name, known));
  }
  std::vector<Case> chosen;
  for (const Case& one : cases()) {
    const auto named = [&](const std::string& name) {
      return name == one.name || name == one.group;
    };
    if (names.empty() ? one.by_default : std::any_of(names.begin(), names.end(), named)) {
      chosen.push_back(one);
    }
  }
  return chosen;
}

Problem make_problem(const Case& which, const Shape& shape, at::ScalarType dtype) {
  at::manual_seed(0);
  Problem problem = which.make(shape, which);
  for (Tensor& x : problem.inputs) x = x.to(dtype).requires_grad_();
  return problem;
}

}  // namespace hopmix::bench
