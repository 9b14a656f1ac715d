// log_linear_attention and log_linear_delta_rule: checks, CPU and meta kernels, autograd. The
// mathematics is in kernels/chunked/README.md.
#include <torch/library.h>

#include <utility>

#include "hopmix/kernels/chunked/fenwick.h"
#include "hopmix/kernels/chunked/log_linear_attention.h"
#include "hopmix/ops/checks.h"
#include "hopmix/ops/engines.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/optional_tensors.h"
#include "hopmix/ops/saved_autograd.h"

namespace hopmix::ops {
namespace {

using Scale = std::optional<double>;

struct Attention {
  static constexpr size_t kCount = 5;
  static constexpr bool kCorrects = false;
  static constexpr char kName[] = "log_linear_attention";
  static constexpr char kInputs[] =
      "Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor level_scales";

  static void check(Arguments& args, const Tensors<5>& in) {
    args.tensor("log_decay", in[3], {"B", "T", "H"});
  }
};

struct DeltaAttention {
  static constexpr size_t kCount = 6;
  static constexpr bool kCorrects = true;  // the input before the last is beta
  static constexpr char kName[] = "log_linear_delta_rule";
  static constexpr char kInputs[] =
      "Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor beta, Tensor level_scales";

  static void check(Arguments& args, const Tensors<6>& in) {
    args.tensor("log_decay", in[3], {"B", "T", "H"});
    args.tensor("beta", in[4], {"B", "T", "H"});
  }
};

void check_levels(const std::string& op, const c10::SymInt& given, int64_t longest) {
  const int64_t needed = kernels::fenwick_levels(longest);
  TORCH_CHECK_VALUE(given >= needed, op, ": level_scales has L = ", given,
                    " levels, but must have at least L = ", needed, " for ", longest, " tokens");
}

/// What SavedOperator asks for, from one of the above.
template <typename Form>
struct Op : Form {
  static constexpr size_t N = Form::kCount;
  using Inputs = Tensors<N>;
  using Needs = std::array<bool, N>;
  using Gradients = std::vector<Tensor>;

  static constexpr char kTail[] = "float? scale=None";

  static Arguments check(const std::string& op, const Inputs& in, Maybe cu) {
    Arguments args(op);
    args.tensor("q", in[0], {"B", "T", "H", "DK"});
    args.tensor("k", in[1], {"B", "T", "G", "DK"});
    args.tensor("v", in[2], {"B", "T", "G", "DV"});
    args.grouped_heads();
    Form::check(args, in);
    const Tensor& scales = in.back();
    args.tensor("level_scales", scales, {"B", "T", "H", "L"});
    args.cu_seqlens(cu);
    const std::optional<int64_t> time = in[0].sym_size(1).maybe_as_int();
    if (!cu && time) check_levels(op, scales.sym_size(3), *time);
    return args;
  }

  static kernels::Sequences bind(const Arguments& args, const Inputs& in, Maybe cu) {
    kernels::Sequences sequences = bind_sequences(args, cu);
    check_levels(args.op(), in.back().sym_size(3), sequences.longest());
    return sequences;
  }

  // `in` is contiguous.
  template <typename T>
  static kernels::LogLinearInputs<T> inputs(const Arguments& args, const Inputs& in, double scale,
                                            const kernels::Sequences& sequences) {
    return {{read<T>(in[0]), read<T>(in[1]), read<T>(in[2]), read<T>(in[3]), /*channels=*/false,
             Form::kCorrects ? read<T>(in[4]) : nullptr, /*initial_state=*/nullptr, args.size("H"),
             args.size("G"), args.size("DK"), args.size("DV"), scale, sequences},
            read<T>(in.back()),
            args.size("L")};
  }

  static std::vector<Tensor> forward_meta(const Inputs& in, Scale, Maybe cu) {
    return {check(Form::kName, in, cu).empty({"B", "T", "H", "DV"})};
  }

  static std::vector<Tensor> forward_cpu(const Inputs& given, Scale scale, Maybe cu) {
    const Arguments args = check(Form::kName, given, cu);
    const Inputs in = contiguous(given);
    const kernels::Sequences sequences = bind(args, in, cu);
    const double factor = args.scale(scale);
    const Tensor o = args.empty({"B", "T", "H", "DV"});
    if (o.numel() == 0) return {o};
    ensure_gemm_engine();
    with_storage_type(args.dtype(), [&]<typename T>() {
      kernels::log_linear_attention(inputs<T>(args, in, factor, sequences), write<T>(o));
    });
    return {o};
  }

  static Arguments check_backward(const Tensor& grad_o, at::TensorList kept, const Inputs& in,
                                  Maybe cu) {
    Arguments args = check(std::string(Form::kName) + "_backward", in, cu);
    args.tensor("grad_y", grad_o, {"B", "T", "H", "DV"});
    args.kept(kept, 0);
    return args;
  }

  static Gradients backward_meta(const Tensor& grad_o, at::TensorList kept, const Inputs& in, Scale,
                                 Maybe cu, Needs needs) {
    check_backward(grad_o, kept, in, cu);
    return gradients(in, needs);
  }

  static Gradients backward_cpu(const Tensor& grad_o, at::TensorList kept, const Inputs& given,
                                Scale scale, Maybe cu, Needs needs) {
    const Arguments args = check_backward(grad_o, kept, given, cu);
    const Inputs in = contiguous(given);
    const kernels::Sequences sequences = bind(args, in, cu);
    const double factor = args.scale(scale);
    const Gradients out = gradients(in, needs);
    if (grad_o.numel() == 0) {
      for (const Tensor& x : out) x.zero_();
      return out;
    }
    const Tensor d_o = grad_o.contiguous();
    ensure_gemm_engine();
    with_storage_type(args.dtype(), [&]<typename T>() {
      const auto to = [&](size_t i) { return write_if<T>(needs[i], out[i]); };
      kernels::log_linear_attention_backward(
          inputs<T>(args, in, factor, sequences), read<T>(d_o),
          {{to(0), to(1), to(2), to(3), Form::kCorrects ? to(4) : nullptr}, to(N - 1)});
    });
    return out;
  }

  static constexpr auto* kForward = forward_cpu;
  static constexpr auto* kBackward = backward_cpu;
  static constexpr auto* kForwardMeta = forward_meta;
  static constexpr auto* kBackwardMeta = backward_meta;
};

using AttentionOperator = Saved<Op<Attention>, Attention::kCount, Scale>;
using DeltaOperator = Saved<Op<DeltaAttention>, DeltaAttention::kCount, Scale>;

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  AttentionOperator::define(m);
  DeltaOperator::define(m);
}
TORCH_LIBRARY_IMPL(hopmix, CPU, m) {
  AttentionOperator::implement_cpu(m);
  DeltaOperator::implement_cpu(m);
}
TORCH_LIBRARY_IMPL(hopmix, Meta, m) {
  AttentionOperator::implement_meta(m);
  DeltaOperator::implement_meta(m);
}
TORCH_LIBRARY_IMPL(hopmix, Autograd, m) {
  AttentionOperator::implement_autograd(m);
  DeltaOperator::implement_autograd(m);
}

}  // namespace

Tensor log_linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                            const Tensor& log_decay, const Tensor& level_scales,
                            std::optional<double> scale, const std::optional<Tensor>& cu_seqlens) {
  return AttentionOperator::call({q, k, v, log_decay, level_scales}, scale, cu_seqlens);
}

Tensor log_linear_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& log_decay, const Tensor& beta,
                             const Tensor& level_scales, std::optional<double> scale,
                             const std::optional<Tensor>& cu_seqlens) {
  return DeltaOperator::call({q, k, v, log_decay, beta, level_scales}, scale, cu_seqlens);
}

}  // namespace hopmix::ops
