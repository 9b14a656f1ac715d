#include "hopmix/kernels/chunked/log_linear_attention.h"

#include "hopmix/kernels/chunked/delta_transition.h"
#include "hopmix/kernels/chunked/log_linear.h"

namespace hopmix::kernels {
namespace {

/// Calls f(make) with make() giving the Rule (chunked_heads.h) of these inputs.
template <typename T, typename F>
void with_rule(const LogLinearInputs<T>& in, const LogLinearGradients<T>& out, const F& f) {
  with_operands<T>([&]<typename O>() {
    const MatrixStateInputs<T>& r = in.recurrence;
    const MatrixStateGradients<T>& d = out.recurrence;
    const ChunkedSizes sizes(r);
    const auto scales = [&] {
      return LevelScales<T>(sizes, in.levels, in.level_scales, out.level_scales);
    };
    if (r.beta == nullptr) {
      using Transition = DecayTransition<T, O>;
      f([&] {
        return LogLinear<T, O, Transition>(sizes, Transition(sizes, r.log_decay, d.log_decay),
                                           scales());
      });
    } else {
      using Transition = DeltaTransition<T, O>;
      const DeltaGates<T> gates{r.beta, r.log_decay, d.beta, d.log_decay};
      f([&] { return LogLinear<T, O, Transition>(sizes, Transition(sizes, gates), scales()); });
    }
  });
}

}  // namespace

template <typename T>
void log_linear_attention(const LogLinearInputs<T>& in, T* o) {
  with_rule<T>(in, {}, [&](const auto& make) {
    chunked_forward<T>(in.recurrence, make, o, /*state=*/nullptr);
  });
}

template <typename T>
void log_linear_attention_backward(const LogLinearInputs<T>& in, const T* grad_o,
                                   const LogLinearGradients<T>& out) {
  with_rule<T>(in, out, [&](const auto& make) {
    chunked_backward<T>(in.recurrence, make, grad_o, /*grad_state=*/nullptr, out.recurrence);
  });
}

template void log_linear_attention(const LogLinearInputs<float>&, float*);
template void log_linear_attention(const LogLinearInputs<double>&, double*);
template void log_linear_attention(const LogLinearInputs<Bfloat16>&, Bfloat16*);
template void log_linear_attention_backward(const LogLinearInputs<float>&, const float*,
                                            const LogLinearGradients<float>&);
template void log_linear_attention_backward(const LogLinearInputs<double>&, const double*,
                                            const LogLinearGradients<double>&);
template void log_linear_attention_backward(const LogLinearInputs<Bfloat16>&, const Bfloat16*,
                                            const LogLinearGradients<Bfloat16>&);

}  // namespace hopmix::kernels
