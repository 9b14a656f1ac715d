#include "hopmix/kernels/chunked/linear_attention.h"

#include "hopmix/kernels/chunked/channel_decay.h"
#include "hopmix/kernels/chunked/head_decay.h"
#include "hopmix/kernels/chunked/outer_products.h"

namespace hopmix::kernels {
namespace {

/// Calls f(make) with make() giving the Rule (chunked_heads.h) of these inputs.
template <typename T, typename F>
void with_rule(const MatrixStateInputs<T>& in, const MatrixStateGradients<T>& out, const F& f) {
  with_operands<T>([&]<typename O>() {
    const ChunkedSizes sizes(in);
    if (in.log_decay == nullptr) {
      using Decay = HeadDecay<T, O, /*kDecays=*/false>;
      f([&] { return OuterProducts<T, O, Decay>(sizes, {sizes, nullptr, nullptr}); });
    } else if (in.channels) {
      const bool differentiable = out.q || out.k || out.log_decay;
      f([&] {
        return OuterProducts<T, O, ChannelDecay<T, O>>(
            sizes, {sizes, in.log_decay, out.log_decay, differentiable});
      });
    } else {
      using Decay = HeadDecay<T, O, /*kDecays=*/true>;
      f([&] { return OuterProducts<T, O, Decay>(sizes, {sizes, in.log_decay, out.log_decay}); });
    }
  });
}

}  // namespace

template <typename T>
void linear_attention(const MatrixStateInputs<T>& in, T* o, Accumulator<T>* state) {
  step_single_tokens(in, o, state);
  with_rule<T>(in, {}, [&](const auto& make) { chunked_forward(in, make, o, state); });
}

template <typename T>
void linear_attention_backward(const MatrixStateInputs<T>& in, const T* grad_o,
                               const Accumulator<T>* grad_state,
                               const MatrixStateGradients<T>& out) {
  with_rule<T>(in, out,
               [&](const auto& make) { chunked_backward(in, make, grad_o, grad_state, out); });
}

template void linear_attention(const MatrixStateInputs<float>&, float*, float*);
template void linear_attention(const MatrixStateInputs<double>&, double*, double*);
template void linear_attention(const MatrixStateInputs<Bfloat16>&, Bfloat16*, float*);
template void linear_attention_backward(const MatrixStateInputs<float>&, const float*, const float*,
                                        const MatrixStateGradients<float>&);
template void linear_attention_backward(const MatrixStateInputs<double>&, const double*,
                                        const double*, const MatrixStateGradients<double>&);
template void linear_attention_backward(const MatrixStateInputs<Bfloat16>&, const Bfloat16*,
                                        const float*, const MatrixStateGradients<Bfloat16>&);

}  // namespace hopmix::kernels
