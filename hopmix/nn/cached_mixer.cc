#include "hopmix/nn/cached_mixer.h"

#include "hopmix/nn/by_sequence.h"
#include "hopmix/nn/token_shift.h"

namespace hopmix::nn {

std::vector<PatternCache::Entry> head_entries(const HeadsConfig& heads,
                                              const std::vector<std::string>& names) {
  check_heads(heads);
  std::vector<PatternCache::Entry> entries;
  for (const std::string& name : names) {
    entries.push_back({name, {{heads.heads, heads.head_width()}}});
  }
  return entries;
}

CachedMixer::CachedMixer(const HeadsConfig& heads, PatternCache cache)
    : heads_(heads), cache_(std::move(cache)) {
  keep(token_shift_state(heads_));
  keep(cache_.state());
}

Tensor CachedMixer::step(const Tensor& x, State& state, Context& context) {
  const Tensor input = shift_tokens_step(heads_, x, state);
  const Tensor y = attend(project(input, state.position), state, context);
  ++state.position;
  return read_out(y);
}

Tensor CachedMixer::step_each(const Tensor& x, std::span<State* const> states,
                              std::span<Context> contexts) {
  const std::vector<Tensor> all = project(shift_tokens_each(heads_, x, states), Starts(states));
  return read_out(by_sequence(states.size(), [&](size_t b) {
    std::vector<Tensor> row;
    for (const Tensor& part : all) row.push_back(part.narrow(0, static_cast<int64_t>(b), 1));
    const Tensor y = attend(row, *states[b], contexts[b]);
    ++states[b]->position;
    return y;
  }));
}

int64_t CachedMixer::state_bytes(int64_t t) const {
  return Mixer::state_bytes(t) + cache_.bytes(t, options());
}

}  // namespace hopmix::nn
