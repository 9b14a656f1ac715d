#include "hopmix/kernels/decode/glr_decoder.h"

#include <algorithm>
#include <cmath>

#include "hopmix/base/error.h"
#include "hopmix/kernels/decode/attention_step.h"

namespace hopmix::kernels {
namespace {

GlrDecoderConfig checked(GlrDecoderConfig config) {
  for (const auto& [name, size] : {std::pair("heads", config.heads),
                                   {"key_width", config.key_width},
                                   {"value_width", config.value_width}}) {
    if (size < 1)
      throw Error(std::string(name) + " = " + std::to_string(size) + ": must be at least 1");
  }
  if (config.length < 0) {
    throw Error("length = " + std::to_string(config.length) +
                ": must be at least 1, or 0 for none");
  }
  if (config.scale == 0) config.scale = 1 / std::sqrt(static_cast<double>(config.key_width));
  return config;
}

}  // namespace

template <typename T>
GlrDecoder<T>::GlrDecoder(const GlrDecoderConfig& config)
    : config_(checked(config)),
      slots_(Pattern(config.pattern, 1), config.length),
      next_(static_cast<size_t>(config.heads * config.value_width)) {}

template <typename T>
void GlrDecoder<T>::step(const GlrToken<T>& token, T* y) {
  const int64_t keys = config_.heads * config_.key_width, width = config_.value_width;
  if (config_.length > 0 && position_ >= config_.length) {
    throw Error("length = " + std::to_string(config_.length) + ": must exceed the position, " +
                std::to_string(position_));
  }
  if (slots_.kind() != SlotPolicy::Kind::kNextRow) {
    reads_ = slots_.row(position_);
    for (int32_t& read : reads_) read = slots_.slot_of(read);
  }
  attention_step<T>({.q = token.q,
                     .k = k_.data(),
                     .v = z_.data(),
                     .slots = reads_.data(),
                     .batch = 1,
                     .reads = static_cast<int64_t>(reads_.size()),
                     .heads = config_.heads,
                     .kv_heads = config_.heads,
                     .key_width = config_.key_width,
                     .value_width = width,
                     .k_stride = 0,
                     .v_stride = 0,
                     .scale = config_.scale},
                    next_.data());
  for (int64_t h = 0; h < config_.heads; ++h) {
    for (int64_t c = h * width; c < (h + 1) * width; ++c) {
      const T direct = token.d[h] * token.v[c];
      next_[c] = direct + token.d_self[h] * token.v[c] + token.gate[h] * next_[c];
      y[c] = next_[c] - direct;
    }
  }
  const SlotPolicy::Change change = slots_.store(position_, held_.data());
  const auto put = [&change](auto& all, const auto* entry, int64_t size) {
    if (change.slot >= 0) {
      all.resize(std::max<size_t>(all.size(), (change.slot + 1) * size));
      std::copy_n(entry, size, all.begin() + change.slot * size);
    }
    for (const auto& [from, to] : change.moves) {
      std::copy_n(all.begin() + from * size, size, all.begin() + to * size);
    }
  };
  const auto token_number = static_cast<int32_t>(position_++);
  put(k_, token.k, keys);
  put(z_, next_.data(), config_.heads * width);
  put(held_, &token_number, 1);
  std::erase_if(reads_, [&change](int32_t slot) {
    return std::binary_search(change.freed.begin(), change.freed.end(), slot);
  });
  for (const auto& [from, to] : change.moves) {
    std::replace(reads_.begin(), reads_.end(), from, to);
  }
  if (change.slot >= 0) reads_.push_back(change.slot);
}

template class GlrDecoder<float>;
template class GlrDecoder<double>;

}  // namespace hopmix::kernels
