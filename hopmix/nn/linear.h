// Linear layers on the operators of ops/: torch.nn.Linear with different matrix products.
#pragma once

#include <initializer_list>
#include <vector>

#include "hopmix/nn/torch.h"

namespace hopmix::nn {

using torch::Tensor;

/// y = x W^T + b, with parameters `weight` and `bias` as in torch.nn.Linear. Under autocast, the
/// products have its type.
class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  Tensor forward(const Tensor& x);
};
TORCH_MODULE(Linear);

/// A linear layer with PyTorch's weight initialization and, if it has a bias, a bias of 0.
Linear linear(int64_t inputs, int64_t outputs, bool bias = false);

/// Throws Error unless a weight of these sizes, and its copy, fit the machine's memory.
void check_weight(std::initializer_list<int64_t> sizes);

/// y = x W^T + b for a weight and a bias (undefined for none) of any module.
Tensor apply_linear(const Tensor& x, const Tensor& weight, const Tensor& bias);

/// x W^T for the concatenated rows of all weights, split into parts of `widths` rows, each within
/// one weight: x [B,T,inputs] -> [B,T,widths[i]] each, contiguous. Slices of a single product would
/// be copied by every kernel that reads them, and their gradients concatenated.
std::vector<Tensor> linear_parts(const Tensor& x, const std::vector<Tensor>& weights,
                                 const std::vector<int64_t>& widths);

/// down(gelu(up(x))), both maps with a bias.
Tensor feed_forward(const Tensor& x, const Linear& up, const Linear& down);

/// x in the type that autocast uses for products; x itself without autocast.
Tensor as_product_type(const Tensor& x);

}  // namespace hopmix::nn
