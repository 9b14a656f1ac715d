#include "hopmix/nn/mixers/glr.h"

#include "hopmix/nn/token_shift.h"

namespace hopmix::nn {
namespace {

std::vector<PatternCache::Entry> entries(const GlrConfig& config, const GlrForm& form) {
  std::vector<PatternCache::Entry> all = head_entries(config, form.cached_vectors);
  for (const std::string& name : form.cached_numbers) all.push_back({name, {{config.heads}}});
  return all;
}

}  // namespace

Glr::Glr(const GlrConfig& config)
    : CachedMixer(config, {config.pattern, entries(config, find_glr_form(config.coefficients)),
                           config.end}),
      form_(find_glr_form(config.coefficients)),
      rows_(config.pattern) {
  const auto vectors = static_cast<int64_t>(form_.vectors),
             gates = static_cast<int64_t>(form_.gates);
  qkv_ = register_module("qkv", linear(config.input_width(), vectors * config.width));
  gates_ =
      register_module("gates", linear(config.input_width(), gates * config.heads, /*bias=*/true));
  out_ = register_module("out", linear(config.width, config.width));
  if (form_.normalized) {
    norm_ = register_module("norm", std::make_shared<RmsNorm>(config.head_width()));
  }
}

std::vector<Tensor> Glr::project(const Tensor& input, const Starts& start) {
  std::vector<int64_t> widths(form_.vectors, heads_.width);
  widths.push_back(gates_->weight.size(0));
  std::vector<Tensor> parts = linear_parts(input, {qkv_->weight, gates_->weight}, widths);
  const Tensor logits = parts.back() + gates_->bias.to(parts.back().scalar_type());
  parts.pop_back();
  for (Tensor& part : parts) part = split_heads(part, heads_.heads);
  if (heads_.rope) rotate(parts, form_.rotated, start);
  const Tensor gates = form_.normalized ? logits : torch::sigmoid(logits);
  for (const Tensor& gate : gates.split(heads_.heads, 2)) parts.push_back(gate);
  return parts;
}

Tensor Glr::normalize(const Tensor& y) {
  return form_.normalized ? norm_->forward(y).to(y.scalar_type()) : y;
}

Tensor Glr::read_out(const Tensor& y) { return CachedMixer::read_out(normalize(y)); }

Tensor Glr::forward(const Tensor& x, Context& context) {
  const Packing& packing = context.packing;
  const std::vector<Tensor> parts = project(shift_tokens(heads_, x, packing), packing);
  const Tensor y = form_.solve(parts, cache_.pattern(), rows_, packing);
  return CachedMixer::read_out(context.wanted(normalize(y)));
}

Tensor Glr::prefill(const Tensor& x, State& state, Context& context) {
  // The operators require an empty past.
  if (state.position > 0) return Mixer::prefill(x, state, context);
  const std::vector<Tensor> parts = project(shift_more_tokens(heads_, x, state), 0);
  const Tensor y = form_.solve(parts, cache_.pattern(), rows_, {});
  cache_.extend(state, form_.entries(parts, y));
  state.position += x.size(1);
  return read_out(y);
}

Tensor Glr::attend(const std::vector<Tensor>& parts, State& state, Context&) {
  return form_.step(parts, cache_, state);
}

MixerEntry glr_entry() {
  return {"glr",
          "y_i = sum_{j in S_i, j=i} a_ij x_j + sum_{j in S_i} b_ij y_j",
          "|S_i|",
          "2 cache(S); 3 if normalized, 4 if independent",
          "Fagnou et al. 2026 (arXiv 2605.31367)",
          [](config::Table& table, const BlockDefaults& defaults) {
            const HeadsConfig heads = read_heads(table, defaults);
            GlrConfig config{heads, read_pattern(table, "k^2+1", defaults)};
            std::vector<std::string> forms;
            for (const GlrForm& form : glr_forms()) forms.push_back(form.name);
            config.coefficients = table.get_choice("coefficients", config.coefficients, forms);
            return plan<Glr>(config);
          }};
}

}  // namespace hopmix::nn
