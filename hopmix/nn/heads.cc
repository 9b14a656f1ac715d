#include "hopmix/nn/heads.h"

#include <cmath>

#include <torch/csrc/autograd/custom_function.h>

#include "hopmix/ops/ops.h"
#include "hopmix/pattern/pattern.h"

namespace hopmix::nn {
namespace {

// concat(x_i, x_{i-1}) in one pass over the memory, and one in the backward. `starts`, if any, are
// further tokens, besides the first, that have no predecessor.
class Shift : public torch::autograd::Function<Shift> {
 public:
  using Context = torch::autograd::AutogradContext;

  static Tensor forward(Context* ctx, const Tensor& x, const std::optional<Tensor>& starts) {
    ctx->saved_data["starts"] = starts;
    const int64_t width = x.size(2);
    const Tensor out = torch::empty({x.size(0), x.size(1), 2 * width}, x.options());
    const auto [current, previous] = halves(out, width);
    current.copy_(x);
    previous.slice(1, 0, 1).zero_();
    previous.slice(1, 1).copy_(x.slice(1, 0, -1));
    if (starts) previous.index_fill_(1, *starts, 0);
    return out;
  }

  static std::vector<Tensor> backward(Context* ctx, const std::vector<Tensor>& grads) {
    const auto starts = ctx->saved_data["starts"].toOptional<Tensor>();
    auto [current, previous] = halves(grads[0], grads[0].size(2) / 2);
    if (starts) previous = previous.index_fill(1, *starts, 0);
    const Tensor grad = current.clone(torch::MemoryFormat::Contiguous);
    grad.slice(1, 0, -1).add_(previous.slice(1, 1));
    return {grad, Tensor()};
  }

 private:
  static std::pair<Tensor, Tensor> halves(const Tensor& x, int64_t width) {
    return {x.narrow(2, 0, width), x.narrow(2, width, width)};
  }
};

}  // namespace

Starts::Starts(std::span<State* const> of_each_row) {
  for (const State* state : of_each_row) positions_.push_back(state->position);
}

Tensor Starts::of_tokens(int64_t time) const {
  if (packing_) return packing_.positions(time).unsqueeze(0);
  return torch::tensor(positions_, torch::kInt64).unsqueeze(1) + torch::arange(time);
}

int64_t Starts::last(int64_t time) const {
  return *std::max_element(positions_.begin(), positions_.end()) + packing_.longest(time) - 1;
}

HeadsConfig read_heads_without_rope(config::Table& table, const BlockDefaults& defaults) {
  HeadsConfig config;
  config.width = defaults.width;
  config.heads = table.get_between("heads", defaults.heads, 1, kMostSize);
  config.token_shift = table.get("token_shift", defaults.token_shift);
  config.end = defaults.end;
  check_heads(config);
  return config;
}

HeadsConfig read_heads(config::Table& table, const BlockDefaults& defaults) {
  HeadsConfig config = read_heads_without_rope(table, defaults);
  config.rope = table.get("rope", defaults.rope);
  check_heads(config);
  return config;
}

std::string read_pattern(config::Table& table, const std::string& fallback,
                         const BlockDefaults& defaults) {
  const std::string spec = table.get("pattern", fallback);
  try {
    Pattern(spec, defaults.length);
  } catch (const Error& error) {
    throw Error(table.name("pattern") + ": " + error.what());
  }
  return spec;
}

void check_heads(const HeadsConfig& config) {
  if (config.width < 1) {
    throw Error("width = " + std::to_string(config.width) + ": must be at least 1");
  }
  if (config.heads < 1 || config.width % config.heads != 0) {
    throw Error("heads = " + std::to_string(config.heads) + ": must divide the width, " +
                std::to_string(config.width));
  }
  if (config.rope && config.head_width() % 2 != 0) {
    throw Error("rope = true: needs an even head width, not " +
                std::to_string(config.head_width()) + " (width / heads)");
  }
}

Tensor shift_tokens(const HeadsConfig& config, const Tensor& x, const Packing& packing) {
  if (!config.token_shift) return x;
  return Shift::apply(x, packing ? std::optional(packing.starts()) : std::nullopt);
}

Tensor shift_more_tokens(const HeadsConfig& config, const Tensor& x, State& state) {
  if (!config.token_shift) return x;
  const Tensor before = state.tensors.at("last").unsqueeze(1);
  const Tensor previous = torch::cat({before, x.slice(1, 0, -1)}, 1);
  state.tensors["last"] = x.select(1, -1).clone();  // clone: a view would keep all tokens alive
  return torch::cat({x, previous}, -1);
}

Tensor shift_tokens_step(const HeadsConfig& config, const Tensor& x, State& state) {
  if (!config.token_shift) return x.unsqueeze(1);
  const Tensor input = torch::cat({x, state.tensors.at("last")}, -1).unsqueeze(1);
  state.tensors["last"] = x.clone();  // clone: a view would keep the whole batch of tokens alive
  return input;
}

Tensor shift_tokens_each(const HeadsConfig& config, const Tensor& x,
                         std::span<State* const> states) {
  if (!config.token_shift) return x.unsqueeze(1);
  std::vector<Tensor> previous;
  for (size_t b = 0; b < states.size(); ++b) {
    Tensor& last = states[b]->tensors.at("last");
    previous.push_back(last);
    last = x.narrow(0, static_cast<int64_t>(b), 1).clone();
  }
  return torch::cat({x, torch::cat(previous)}, -1).unsqueeze(1);
}

void init_token_shift(const HeadsConfig& config, int64_t batch, torch::TensorOptions options,
                      State& state) {
  if (config.token_shift) state.tensors["last"] = torch::zeros({batch, config.width}, options);
}

Tensor split_heads(const Tensor& x, int64_t heads) {
  return x.unflatten(-1, {heads, x.size(-1) / heads});
}

std::vector<Tensor> row_of(const std::vector<Tensor>& parts, size_t b) {
  std::vector<Tensor> row;
  for (const Tensor& part : parts) row.push_back(part.narrow(0, static_cast<int64_t>(b), 1));
  return row;
}

Turns::Turns(int64_t width, int64_t time, const Starts& start, at::ScalarType type) {
  if (time == 1) {  // a decoding step: few and short operations
    const int64_t pairs = width / 2, rows = static_cast<int64_t>(start.positions().size());
    const auto options = torch::TensorOptions().dtype(torch::kFloat64);
    cos = torch::empty({rows, 1, pairs}, options);
    sin = torch::empty({rows, 1, pairs}, options);
    auto *c = cos.mutable_data_ptr<double>(), *s = sin.mutable_data_ptr<double>();
    for (const int64_t position : start.positions()) {
      for (int64_t p = 0; p < pairs; ++p) {
        const double angle =
            static_cast<double>(position) *
            std::pow(10000.0, -static_cast<double>(p) / static_cast<double>(pairs));
        *c++ = std::cos(angle);
        *s++ = std::sin(angle);
      }
    }
    cos = cos.to(type);
    sin = sin.to(type);
    return;
  }
  const Tensor frequency = torch::pow(
      10000.0, -torch::arange(0, width, 2, torch::kFloat64) / static_cast<double>(width));
  const Tensor angle = start.of_tokens(time).to(torch::kFloat64).unsqueeze(2) * frequency;
  cos = angle.cos().to(type);
  sin = angle.sin().to(type);
}

Tensor apply_rope(const Tensor& x, const Starts& start) {
  return apply_rope(x, Turns(x.size(3), x.size(1), start, x.scalar_type()));
}

Tensor apply_rope(const Tensor& x, const Turns& turns) {
  return ops::rope(x, turns.cos, turns.sin);
}

std::vector<Tensor> project_qkv(Linear& qkv, const HeadsConfig& config, const Tensor& input,
                                const Starts& start) {
  const std::vector<int64_t> widths(3, config.width);
  std::vector<Tensor> parts = linear_parts(input, {qkv->weight}, widths);
  for (Tensor& part : parts) part = split_heads(part, config.heads);
  if (config.rope) rotate(parts, {0, 1}, start);
  return parts;
}

void rotate(std::vector<Tensor>& parts, std::initializer_list<size_t> which, const Starts& start) {
  const Tensor& x = parts[*which.begin()];
  const Turns turns(x.size(3), x.size(1), start, x.scalar_type());
  for (const size_t i : which) parts[i] = apply_rope(parts[i], turns);
}

Tensor token_scores(const Tensor& q, const Tensor& k) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
  const int64_t kv_heads = k.size(2);
  const Tensor grouped = (q * scale).unflatten(1, {kv_heads, q.size(1) / kv_heads});
  return torch::matmul(grouped, k.permute({0, 2, 3, 1})).flatten(1, 2);
}

Tensor token_softmax(const Tensor& q, const Tensor& k) {
  return torch::softmax(token_scores(q, k), -1);
}

Tensor token_softmax(const Tensor& q, const Tensor& k, const Tensor& own) {
  return torch::softmax(torch::cat({token_scores(q, k), token_scores(q, own)}, -1), -1);
}

Tensor token_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const std::optional<Tensor>& slots,
                       const std::optional<std::pair<Tensor, Tensor>>& own) {
  if (!torch::GradMode::is_enabled() || !q.requires_grad()) {
    const torch::NoGradGuard no_grad;
    if (!own) return ops::attention_step(q, k, v, slots);
    return ops::attention_step(q, k, v, slots, own->first.squeeze(1), own->second.squeeze(1));
  }
  const auto read = [&](const Tensor& all) { return slots ? all.index_select(1, *slots) : all; };
  if (!own) return token_sum(token_softmax(q, read(k)), read(v));
  return token_sum(token_softmax(q, read(k), own->first), read(v), own->second);
}

Tensor token_sum(const Tensor& p, const Tensor& v) {
  const int64_t kv_heads = v.size(2);
  const Tensor grouped = p.unflatten(1, {kv_heads, p.size(1) / kv_heads});
  return torch::matmul(grouped, v.transpose(1, 2)).flatten(1, 2);
}

Tensor token_sum(const Tensor& p, const Tensor& v, const Tensor& own) {
  const int64_t c = v.size(1), group = p.size(1) / own.size(2);
  const Tensor newest = own.squeeze(1);
  return token_sum(p.narrow(-1, 0, c), v) +
         p.narrow(-1, c, 1) * (group == 1 ? newest : newest.repeat_interleave(group, 1));
}

}  // namespace hopmix::nn
