// An operator over time with a matrix state (kernels/chunked/matrix_state.h) from a description of
// its inputs: checks, CPU and meta kernels, autograd. With INPUTS = q, k, v and more:
//   NAME(INPUTS, float? scale=None, Tensor? initial_state=None, Tensor? cu_seqlens=None)
//       -> (Tensor o, Tensor state)
//   NAME_backward(Tensor? grad_o, Tensor? grad_state, INPUTS, float? scale, Tensor? initial_state,
//       Tensor? cu_seqlens, bool[] needs) -> Tensor[]
// The second is there so that torch.compile can trace it; it has no derivative of its own.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "hopmix/kernels/chunked/delta_rule.h"
#include "hopmix/kernels/chunked/linear_attention.h"
#include "hopmix/ops/checks.h"
#include "hopmix/ops/engines.h"
#include "hopmix/ops/optional_tensors.h"
#include "hopmix/ops/overloads.h"

namespace hopmix::ops {

/// What an operator takes beside q, k and v, or their gradients: log decays of a head, or of its
/// key channels, and the share of the error that the delta rules write. Undefined where there are
/// none.
struct Gates {
  Tensor log_decay, beta;
};

/// Op describes one operator on N tensors, of which the first three are q, k and v:
///   kName, kInputs                        "ssd", "Tensor q, Tensor k, ..."
///   check(Arguments&, const Tensors<N>&)  of the inputs after v; may be absent if there are none
///   gates(const Tensors<N>&)              which of them, or of their gradients, are the Gates
template <typename Op, size_t N, typename Indices = std::make_index_sequence<N>>
struct ChunkedOperator;

template <typename Op, size_t N, size_t... I>
struct ChunkedOperator<Op, N, std::index_sequence<I...>> {
  using Scale = std::optional<double>;
  using Needs = std::array<bool, N + 1>;  // of the inputs and the initial state
  using Outputs = std::tuple<Tensor, Tensor>;

  static Arguments check(const std::string& op, const Tensors<N>& in, Maybe initial, Maybe cu) {
    Arguments args(op);
    args.tensor("q", in[0], {"B", "T", "H", "DK"});
    args.tensor("k", in[1], {"B", "T", "G", "DK"});
    args.tensor("v", in[2], {"B", "T", "G", "DV"});
    args.grouped_heads();
    if constexpr (N > 3) Op::check(args, in);
    args.cu_seqlens(cu);
    if (initial) args.state("initial_state", *initial, {"N", "H", "DK", "DV"});
    return args;
  }

  static Outputs outputs(const Arguments& args) {
    return {args.empty({"B", "T", "H", "DV"}),
            args.empty({"N", "H", "DK", "DV"}, args.state_dtype())};
  }

  static Outputs forward_meta(TensorArgument<I>... t, Scale, Maybe initial, Maybe cu) {
    return outputs(check(Op::kName, {t...}, initial, cu));
  }

  // `in` and `initial` are contiguous.
  template <typename T>
  static kernels::MatrixStateInputs<T> inputs(const Arguments& args, const Tensors<N>& in,
                                              Scale scale, Maybe initial,
                                              const kernels::Sequences& sequences) {
    const Gates gates = Op::gates(in);
    return {read<T>(in[0]),
            read<T>(in[1]),
            read<T>(in[2]),
            read_defined<T>(gates.log_decay),
            decays_channels(gates),
            read_defined<T>(gates.beta),
            read_state<T>(initial),
            args.size("H"),
            args.size("G"),
            args.size("DK"),
            args.size("DV"),
            args.scale(scale),
            sequences};
  }
  static bool decays_channels(const Gates& gates) {
    return gates.log_decay.defined() && gates.log_decay.dim() == 4;
  }

  static Outputs forward_cpu(TensorArgument<I>... t, Scale scale, Maybe initial, Maybe cu) {
    const Arguments args = check(Op::kName, {t...}, initial, cu);
    const Tensors<N> in = contiguous(Tensors<N>{t...});
    const std::optional<Tensor> first = contiguous_if(initial);
    const kernels::Sequences sequences = bind_sequences(args, cu);
    const double factor = args.scale(scale);
    const Outputs out = outputs(args);
    if (args.size("DV") == 0) return out;
    ensure_gemm_engine();
    with_storage_type(args.dtype(), [&]<typename T>() {
      const auto all = inputs<T>(args, in, factor, first, sequences);
      T* const o = write<T>(std::get<0>(out));
      auto* const state = write<kernels::Accumulator<T>>(std::get<1>(out));
      all.beta != nullptr ? kernels::delta_rule(all, o, state)
                          : kernels::linear_attention(all, o, state);
    });
    return out;
  }

  static Arguments check_backward(Maybe grad_o, Maybe grad_state, const Tensors<N>& in,
                                  Maybe initial, Maybe cu) {
    Arguments args = check(std::string(Op::kName) + "_backward", in, initial, cu);
    if (grad_o) args.tensor("grad_o", *grad_o, {"B", "T", "H", "DV"});
    if (grad_state) args.state("grad_state", *grad_state, {"N", "H", "DK", "DV"});
    return args;
  }

  // Without an initial state there is nothing to give back for it.
  static std::vector<Tensor> new_gradients(const Tensors<N>& in, Maybe initial, Needs& needs) {
    needs[N] = needs[N] && initial.has_value();
    return gradients({in[I]..., initial.value_or(in[0])}, needs);
  }

  static std::vector<Tensor> backward_meta(Maybe grad_o, Maybe grad_state, TensorArgument<I>... t,
                                           Scale, Maybe initial, Maybe cu, Needs needs) {
    const Tensors<N> in{t...};
    check_backward(grad_o, grad_state, in, initial, cu);
    return new_gradients(in, initial, needs);
  }

  static std::vector<Tensor> backward_cpu(Maybe grad_o, Maybe grad_state, TensorArgument<I>... t,
                                          Scale scale, Maybe initial, Maybe cu, Needs needs) {
    const Arguments args = check_backward(grad_o, grad_state, {t...}, initial, cu);
    const Tensors<N> in = contiguous(Tensors<N>{t...});
    const std::optional<Tensor> first = contiguous_if(initial), d_o = contiguous_if(grad_o),
                                d_state = contiguous_if(grad_state);
    const kernels::Sequences sequences = bind_sequences(args, cu);
    const double factor = args.scale(scale);
    const std::vector<Tensor> out = new_gradients(in, initial, needs);
    if (args.size("DV") == 0) {
      for (const Tensor& x : out) x.zero_();
      return out;
    }
    const Tensors<N> wanted{needs[I] ? out[I] : Tensor()...};
    const Gates gates = Op::gates(wanted);
    ensure_gemm_engine();
    with_storage_type(args.dtype(), [&]<typename T>() {
      const auto all = inputs<T>(args, in, factor, first, sequences);
      const kernels::MatrixStateGradients<T> to{
          write_defined<T>(wanted[0]),  write_defined<T>(wanted[1]),
          write_defined<T>(wanted[2]),  write_defined<T>(gates.log_decay),
          write_defined<T>(gates.beta), write_if<kernels::Accumulator<T>>(needs[N], out[N])};
      const T* const from_o = read_if<T>(d_o);
      const auto* const from_state = read_state<T>(d_state);
      all.beta != nullptr ? kernels::delta_rule_backward(all, from_o, from_state, to)
                          : kernels::linear_attention_backward(all, from_o, from_state, to);
    });
    return out;
  }

  template <typename Signature>
  static auto find(const std::string& suffix) {
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow(("hopmix::" + std::string(Op::kName) + suffix).c_str(), "")
        .template typed<Signature>();
  }

  static Outputs call(const Tensors<N>& t, Scale scale, Maybe initial, Maybe cu) {
    static const auto handle = find<decltype(forward_cpu)>("");
    return handle.call(t[I]..., scale, initial, cu);
  }

  class Function : public torch::autograd::Function<Function> {
   public:
    using Context = torch::autograd::AutogradContext;

    static std::vector<Tensor> forward(Context* ctx, at::TensorList in, Maybe initial, Scale scale,
                                       Maybe cu) {
      const at::AutoDispatchBelowADInplaceOrView below;
      const auto [o, state] = ChunkedOperator::call({in[I]...}, scale, initial, cu);
      ctx->set_materialize_grads(false);  // a loss on one output sends nothing for the other
      ctx->save_for_backward({in[I]..., initial.value_or(Tensor()), cu.value_or(Tensor())});
      ctx->saved_data["scale"] = scale;
      return {o, state};
    }

    static std::vector<Tensor> backward(Context* ctx, const std::vector<Tensor>& grads) {
      const std::vector<Tensor> saved = ctx->get_saved_variables();
      const bool initial = saved[N].defined();
      const Needs needs = {ctx->needs_input_grad(I)..., initial && ctx->needs_input_grad(N)};
      std::vector<Tensor> out =
          find<decltype(backward_cpu)>("_backward")
              .call(defined_or_none(grads[0]), defined_or_none(grads[1]), saved[I]...,
                    ctx->saved_data["scale"].template to<Scale>(), defined_or_none(saved[N]),
                    defined_or_none(saved[N + 1]), needs);
      for (size_t i = 0; i < needs.size(); ++i) {
        if (!needs[i]) out[i] = Tensor();
      }
      out.resize(N + 3);  // nothing for scale and cu_seqlens
      return out;
    }
  };

  static bool differentiates(const Tensor& t) {
    return t.defined() &&
           ((at::GradMode::is_enabled() && t.requires_grad()) || t._fw_grad(/*level=*/0).defined());
  }

  static Outputs autograd(TensorArgument<I>... t, Scale scale, Maybe initial, Maybe cu) {
    const Tensors<N> in{t...};
    if (!((differentiates(t) || ...) || (initial && differentiates(*initial)))) {
      const at::AutoDispatchBelowADInplaceOrView below;  // a node of the graph costs as a step does
      return call(in, scale, initial, cu);
    }
    const std::vector<Tensor> out = Function::apply(at::TensorList(in), initial, scale, cu);
    return {out[0], out[1]};
  }

  static void define(torch::Library& m) {
    const std::string name = Op::kName, inputs = Op::kInputs;
    for (const std::string& schema :
         {name + "(" + inputs +
              ", float? scale=None, Tensor? initial_state=None, Tensor? cu_seqlens=None)"
              " -> (Tensor o, Tensor state)",
          name + "_backward(Tensor? grad_o, Tensor? grad_state, " + inputs +
              ", float? scale, Tensor? initial_state, Tensor? cu_seqlens, bool[" +
              std::to_string(N + 1) + "] needs) -> Tensor[]"}) {
      m.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
    }
  }
  static void implement_cpu(torch::Library& m) {
    m.impl(Op::kName, &forward_cpu);
    m.impl((std::string(Op::kName) + "_backward").c_str(), &backward_cpu);
  }
  static void implement_meta(torch::Library& m) {
    m.impl(Op::kName, &forward_meta);
    m.impl((std::string(Op::kName) + "_backward").c_str(), &backward_meta);
  }
  static void implement_autograd(torch::Library& m) {
    m.impl(Op::kName, &autograd);
    m.impl((std::string(Op::kName) + "_backward").c_str(),
           torch::autograd::autogradNotImplementedFallback());
  }
};

}  // namespace hopmix::ops
