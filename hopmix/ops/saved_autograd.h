// Autograd of an operator whose backward needs more than its inputs and output. NAME is joined by
// two operators that torch.compile can trace:
//   _NAME(inputs, tail) -> Tensor[]       the output, then what the backward keeps
//   NAME_backward(grad_y, kept, inputs, tail, needs) -> Tensor[]
// NAME itself has no derivative twice: differentiating a gradient is an error.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "hopmix/ops/overloads.h"
#include "hopmix/ops/tensors.h"

namespace hopmix::ops {

/// Op describes one operator on N tensors; the tail is its other arguments but cu_seqlens:
///   kForward   vector<Tensor>(const Tensors<N>&, Tail..., optional<Tensor> cu_seqlens)
///   kBackward  vector<Tensor>(grad_y, TensorList kept, const Tensors<N>&, Tail..., cu_seqlens,
///              array<bool, N> needs): a gradient for each input
///   kForwardMeta, kBackwardMeta  the same for meta tensors
///   kName, kInputs, kTail        its schema: "Tensor q, ...", "float? scale=None"
///   kKeepsOutput (if it exists)  the output is the first of what the backward gets as kept
template <typename Op, size_t N, typename Indices, typename... Tail>
struct SavedOperator;

template <typename Op>
concept KeepsOutput = requires {
  Op::kKeepsOutput;
};

template <typename Op, size_t N, size_t... I, typename... Tail>
struct SavedOperator<Op, N, std::index_sequence<I...>, Tail...> {
  using Cu = const std::optional<Tensor>&;
  using Needs = std::array<bool, N>;
  using Kept = std::vector<Tensor>;
  using Forward = Kept(TensorArgument<I>..., Tail..., Cu);
  using Backward = std::vector<Tensor>(const Tensor&, at::TensorList, TensorArgument<I>..., Tail...,
                                       Cu, Needs);

  template <auto kFunction>
  static Tensor output(TensorArgument<I>... t, Tail... tail, Cu cu) {
    return kFunction({t...}, tail..., cu)[0];
  }
  template <auto kFunction>
  static Kept forward(TensorArgument<I>... t, Tail... tail, Cu cu) {
    return kFunction({t...}, tail..., cu);
  }
  template <auto kFunction>
  static std::vector<Tensor> backward(const Tensor& grad_y, at::TensorList kept,
                                      TensorArgument<I>... t, Tail... tail, Cu cu, Needs needs) {
    return kFunction(grad_y, kept, {t...}, tail..., cu, needs);
  }

  template <typename Signature>
  static auto find(const std::string& name) {
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow(("hopmix::" + name).c_str(), "")
        .template typed<Signature>();
  }

  class Function : public torch::autograd::Function<Function> {
   public:
    using Context = torch::autograd::AutogradContext;

    static Tensor forward(Context* ctx, at::TensorList in, Tail... tail, Cu cu) {
      const at::AutoDispatchBelowADInplaceOrView below;
      Kept saved = find<Forward>(std::string("_") + Op::kName).call(in[I]..., tail..., cu);
      const Tensor y = saved[0];
      saved[0] = cu.value_or(Tensor());
      saved.insert(saved.begin() + 1, in.begin(), in.end());
      if constexpr (KeepsOutput<Op>) saved.insert(saved.begin() + N + 1, y);
      ctx->save_for_backward(std::move(saved));
      int index = 0;
      ((ctx->saved_data[std::to_string(index++)] = tail), ...);
      return y;
    }

    static std::vector<Tensor> backward(Context* ctx, const std::vector<Tensor>& grad) {
      return backward(ctx, grad[0], std::index_sequence_for<Tail...>());
    }

   private:
    template <size_t... J>
    static std::vector<Tensor> backward(Context* ctx, const Tensor& grad_y,
                                        std::index_sequence<J...>) {
      const std::vector<Tensor> saved = ctx->get_saved_variables();
      const std::optional<Tensor> cu = saved[0].defined() ? std::optional(saved[0]) : std::nullopt;
      const Needs needs = {ctx->needs_input_grad(I)...};
      std::vector<Tensor> out =
          find<Backward>(std::string(Op::kName) + "_backward")
              .call(grad_y, at::TensorList(saved).slice(N + 1), saved[I + 1]...,
                    ctx->saved_data[std::to_string(J)].template to<std::decay_t<Tail>>()..., cu,
                    needs);
      for (size_t i = 0; i < N; ++i) {
        if (!needs[i]) out[i] = Tensor();
      }
      out.resize(N + sizeof...(Tail) + 1);  // nothing for the rest
      return out;
    }
  };

  static Tensor autograd(TensorArgument<I>... t, Tail... tail, Cu cu) {
    const Tensors<N> in{t...};
    return Function::apply(at::TensorList(in), tail..., cu);
  }

  static Tensor call(const Tensors<N>& t, Tail... tail, Cu cu) {
    return find<Tensor(TensorArgument<I>..., Tail..., Cu)>(Op::kName).call(t[I]..., tail..., cu);
  }

  static void define(torch::Library& m) {
    const std::string name = Op::kName, inputs = Op::kInputs, tail = Op::kTail;
    const std::string arguments = inputs + ", " + tail + ", Tensor? cu_seqlens=None";
    std::string required = inputs + ", " + tail + ", Tensor? cu_seqlens";
    for (size_t at; (at = required.find("=None")) != std::string::npos;) required.erase(at, 5);
    for (const std::string& schema :
         {name + "(" + arguments + ") -> Tensor", "_" + name + "(" + required + ") -> Tensor[]",
          name + "_backward(Tensor grad_y, Tensor[] kept, " + required + ", bool[" +
              std::to_string(N) + "] needs) -> Tensor[]"}) {
      m.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
    }
  }

  template <auto kForward, auto kBackward>
  static void implement(torch::Library& m) {
    const std::string name = Op::kName;
    m.impl(name.c_str(), &output<kForward>);
    m.impl(("_" + name).c_str(), &forward<kForward>);
    m.impl((name + "_backward").c_str(), &backward<kBackward>);
  }
  static void implement_cpu(torch::Library& m) { implement<Op::kForward, Op::kBackward>(m); }
  static void implement_meta(torch::Library& m) {
    implement<Op::kForwardMeta, Op::kBackwardMeta>(m);
  }
  static void implement_autograd(torch::Library& m) {
    const std::string name = Op::kName;
    m.impl(name.c_str(), &autograd);
    for (const std::string& inner : {"_" + name, name + "_backward"}) {
      m.impl(inner.c_str(), torch::autograd::autogradNotImplementedFallback());
    }
  }
};

template <typename Op, size_t N, typename... Tail>
using Saved = SavedOperator<Op, N, std::make_index_sequence<N>, Tail...>;

}  // namespace hopmix::ops
