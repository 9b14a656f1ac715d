#include "hopmix/nn/linear.h"

#include <ATen/autocast_mode.h>

#include <sstream>

#include "hopmix/base/error.h"
#include "hopmix/base/memory_size.h"
#include "hopmix/ops/ops.h"

namespace hopmix::nn {

Tensor as_product_type(const Tensor& x) {
  if (!at::autocast::is_autocast_enabled(at::kCPU)) return x;
  // Cast weights once rather than in every pass.
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(at::kCPU), x, c10::kCPU);
}

Tensor apply_linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const std::optional<Tensor> b =
      bias.defined() ? std::optional(as_product_type(bias)) : std::nullopt;
  return ops::linear(as_product_type(x), as_product_type(weight), b);
}

Tensor LinearImpl::forward(const Tensor& x) { return apply_linear(x, weight, bias); }

void check_weight(std::initializer_list<int64_t> sizes) {
  static const int64_t memory = memory_size();
  int64_t bytes = sizeof(float);
  for (const int64_t size : sizes) bytes = saturating_product(bytes, size);
  if (bytes <= memory / 2) return;
  std::ostringstream shape;
  shape << at::IntArrayRef(sizes);
  throw Error("a weight of " + shape.str() + " takes " + format_bytes(bytes) +
              ", too much for this machine's memory, " + format_bytes(memory) +
              "; lower model.width, or the layer's own sizes");
}

Linear linear(int64_t inputs, int64_t outputs, bool bias) {
  check_weight({outputs, inputs});
  Linear map(torch::nn::LinearOptions(inputs, outputs).bias(bias));
  if (bias) torch::nn::init::zeros_(map->bias);
  return map;
}

std::vector<Tensor> linear_parts(const Tensor& x, const std::vector<Tensor>& weights,
                                 const std::vector<int64_t>& widths) {
  std::vector<Tensor> cast;
  for (const Tensor& weight : weights) cast.push_back(as_product_type(weight));
  return ops::linear_parts(as_product_type(x), cast, widths);
}

Tensor feed_forward(const Tensor& x, const Linear& up, const Linear& down) {
  return ops::mlp(as_product_type(x), as_product_type(up->weight), as_product_type(up->bias),
                  as_product_type(down->weight), as_product_type(down->bias));
}

}  // namespace hopmix::nn
