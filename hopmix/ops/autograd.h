// Autograd of an operator on a pattern. Its backward is an operator too (NAME_backward), so
// torch.compile can trace it; that one has no derivative of its own: differentiating twice is an
// error.
#pragma once

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hopmix/ops/ops.h"
#include "hopmix/ops/overloads.h"
#include "hopmix/ops/tensors.h"

namespace hopmix::ops {

/// What an operator returns: a tensor or a tuple of them.
template <typename R>
inline constexpr size_t kOutputs = std::tuple_size_v<R>;
template <>
inline constexpr size_t kOutputs<Tensor> = 1;

template <typename R>
std::vector<Tensor> to_list(const R& outputs) {
  return std::apply([](const auto&... t) { return std::vector<Tensor>{t...}; }, outputs);
}
template <>
inline std::vector<Tensor> to_list(const Tensor& output) {
  return {output};
}

template <typename R>
R from_list(const std::vector<Tensor>& list) {
  if constexpr (std::is_same_v<R, Tensor>) {
    return list[0];
  } else {
    return [&]<size_t... I>(std::index_sequence<I...>) { return R{list[I]...}; }
    (std::make_index_sequence<kOutputs<R>>());
  }
}

/// Op describes one operator on N tensors:
///   kForward   R(const Tensors<N>&, const PatternArg&, Tail...), R a Tensor or a tuple of K
///   kBackward  vector<Tensor>(const Tensors<M>&, const PatternArg&, Tail..., array<bool, N>
///   needs), where the M tensors are
///              the gradients of the K outputs, the first output if M is N + K + 1, and the inputs;
///              it gives a gradient for each input
///   kName      "hopmix::NAME"; the backward is kName + "_backward"
template <typename Op, size_t N, size_t M, typename R, typename... Tail>
class PatternFunction : public torch::autograd::Function<PatternFunction<Op, N, M, R, Tail...>> {
 public:
  using Context = torch::autograd::AutogradContext;

  static std::vector<Tensor> forward(Context* ctx, at::TensorList list, const PatternArg& pattern,
                                     Tail... tail) {
    const at::AutoDispatchBelowADInplaceOrView below;
    Tensors<N> in;
    std::copy(list.begin(), list.end(), in.begin());
    const std::vector<Tensor> outputs =
        to_list(Overloads<Op::kForward>::call(Op::kName, in, pattern, tail...));

    std::vector<Tensor> saved = {pattern.row_ptr, pattern.cols};
    if (M == N + kOutputs<R> + 1) saved.push_back(outputs[0]);
    saved.insert(saved.end(), in.begin(), in.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["pattern"] = std::string(pattern.spec);
    int index = 0;
    ((ctx->saved_data[std::to_string(index++)] = tail), ...);
    return outputs;
  }

  static std::vector<Tensor> backward(Context* ctx, const std::vector<Tensor>& grad) {
    return backward(ctx, grad, std::index_sequence_for<Tail...>());
  }

 private:
  template <size_t... I>
  static std::vector<Tensor> backward(Context* ctx, const std::vector<Tensor>& grad,
                                      std::index_sequence<I...>) {
    const std::vector<Tensor> saved = ctx->get_saved_variables();
    const std::string spec = ctx->saved_data["pattern"].toStringRef();
    const PatternArg pattern =
        saved[0].defined() ? PatternArg(saved[0], saved[1]) : PatternArg(spec);
    Tensors<M> tensors;
    std::copy(grad.begin(), grad.end(), tensors.begin());
    std::copy(saved.begin() + 2, saved.end(), tensors.begin() + kOutputs<R>);
    std::array<bool, N> needs;
    for (size_t i = 0; i < N; ++i) needs[i] = ctx->needs_input_grad(i);

    const std::string name = std::string(Op::kName) + "_backward";
    std::vector<Tensor> out = Overloads<Op::kBackward>::call(
        name.c_str(), tensors, pattern,
        ctx->saved_data[std::to_string(I)].template to<std::decay_t<Tail>>()..., needs);
    for (size_t i = 0; i < N; ++i) {
      if (!needs[i]) out[i] = Tensor();
    }
    out.resize(N + 1 + sizeof...(Tail));  // nothing for the pattern and what follows
    return out;
  }
};

template <typename Op, size_t N, size_t M, typename R, typename... Tail>
struct PatternAutograd {
  static R forward(const Tensors<N>& in, const PatternArg& pattern, Tail... tail) {
    return from_list<R>(
        PatternFunction<Op, N, M, R, Tail...>::apply(at::TensorList(in), pattern, tail...));
  }

  /// Registers the Autograd kernels of Op and of its backward.
  static void implement(torch::Library& library) {
    const std::string name = Op::kName;
    Overloads<forward>::implement(library, name);
    for (const char* suffix : {"_backward", "_backward.spec"}) {
      library.impl((name + suffix).c_str(), torch::autograd::autogradNotImplementedFallback());
    }
  }
};

/// The PatternAutograd of Op, from the signatures of its functions.
template <size_t M, typename... Rest>
std::integral_constant<size_t, M> tensors_of(std::vector<Tensor> (*)(const Tensors<M>&,
                                                                     const PatternArg&, Rest...));

template <typename Op, typename R, size_t N, typename... Tail>
auto autograd_of(R (*)(const Tensors<N>&, const PatternArg&, Tail...))
    -> PatternAutograd<Op, N, decltype(tensors_of(Op::kBackward))::value, R, Tail...>;

template <typename Op>
using AutogradOf = decltype(autograd_of<Op>(Op::kForward));

}  // namespace hopmix::ops
