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
      slots_(config.pattern, config.length),
      next_(static_cast<size_t>(config.heads * config.value_width)) {}

template <typename T>
void GlrDecoder<T>::step(const GlrToken<T>& token, T* y) {
  const int64_t keys = config_.heads * config_.key_width, width = config_.value_width;
  const std::vector<int32_t>& reads = slots_.reads();
  attention_step<T>({.q = token.q,
                     .k = k_.data(),
                     .v = z_.data(),
                     .slots = reads.data(),
                     .batch = 1,
                     .reads = static_cast<int64_t>(reads.size()),
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
  const int64_t slot = slots_.advance();
  k_.resize(slots_.count() * keys);
  z_.resize(slots_.count() * config_.heads * width);
  if (slot < 0) return;
  std::copy_n(token.k, keys, k_.begin() + slot * keys);
  std::copy(next_.begin(), next_.end(), z_.begin() + slot * config_.heads * width);
}

template class GlrDecoder<float>;
template class GlrDecoder<double>;

}  // namespace hopmix::kernels
