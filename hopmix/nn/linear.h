// Linear maps of layers, on the operators of ops/: torch.nn.Linear with other products.
#pragma once

#include <vector>

#include "hopmix/nn/torch.h"

namespace hopmix::nn {

using torch::Tensor;

/// y = x W^T + b; parameters `weight` and `bias` as torch.nn.Linear has them. Under autocast the
/// products are of its type.
class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  Tensor forward(const Tensor& x);
};
TORCH_MODULE(Linear);

/// A linear map; weights as PyTorch draws them, a bias of 0 if there is one.
Linear linear(int64_t inputs, int64_t outputs, bool bias = false);

/// y = x W^T + b with a weight and a bias (or none, undefined) of any module.
Tensor apply_linear(const Tensor& x, const Tensor& weight, const Tensor& bias);

/// x W^T for the rows of all weights, one after another, in parts of `widths` rows that each lie in
/// one weight: x [B,T,inputs] -> [B,T,widths[i]] each, contiguous. Slices of one product would be
/// copied by every kernel that reads them, and their gradients put together again.
std::vector<Tensor> linear_parts(const Tensor& x, const std::vector<Tensor>& weights,
                                 const std::vector<int64_t>& widths);

/// down(gelu(up(x))), both with a bias.
Tensor feed_forward(const Tensor& x, const Linear& up, const Linear& down);

/// x as the type that autocast has products in, or as it is without.
Tensor as_product_type(const Tensor& x);

}  // namespace hopmix::nn
