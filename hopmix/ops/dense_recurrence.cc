// dense_recurrence: checks, CPU and meta kernels, autograd. The mathematics is in dense_blocks.h,
// with c = (d + d_self) v and g = gate: z = w and y = d_self v + gate mix.
#include <torch/library.h>

#include "hopmix/ops/block_types.h"
#include "hopmix/ops/checks.h"
#include "hopmix/ops/dense_heads.h"
#include "hopmix/ops/ops.h"
#include "hopmix/ops/saved_autograd.h"

namespace hopmix::ops {
namespace {

using Cu = const std::optional<Tensor>&;
using Scale = std::optional<double>;
using Needs = std::array<bool, 6>;

Arguments check(const std::string& op, const Tensors<6>& in, Cu cu) {
  const auto& [q, k, v, gate, d, d_self] = in;
  Arguments args(op);
  args.tensor("q", q, {"B", "T", "H", "DK"});
  args.tensor("k", k, {"B", "T", "G", "DK"});
  args.tensor("v", v, {"B", "T", "G", "DV"});
  args.tensor("gate", gate, {"B", "T", "H"});
  args.tensor("d", d, {"B", "T", "H"});
  args.tensor("d_self", d_self, {"B", "T", "H"});
  args.grouped_heads();
  args.cu_seqlens(cu);
  return args;
}

// The output, mix (the backward takes small differences of its products, so it is kept unrounded),
// and the rows' lse.
std::vector<Tensor> outputs(const Arguments& args) {
  return {args.empty({"B", "T", "H", "DV"}), args.empty({"B", "T", "H", "DV"}, args.state_dtype()),
          args.empty({"B", "T", "H"}, args.state_dtype())};
}

std::vector<Tensor> forward_meta(const Tensors<6>& in, Scale, Cu cu) {
  return outputs(check("dense_recurrence", in, cu));
}

// One token's numbers and vectors.
template <typename T>
struct Token {
  using A = kernels::Accumulator<T>;
  const T* v;
  int64_t scalar, row;  // offsets into [B,T,H] and [B,T,H,DV]
  A gate, d, d_self;

  Token(const Tensors<6>& in, const DenseCall& call, const HeadWork<A>& work, int64_t i)
      : v(read<T>(in[2]) + work.at(i, call.kv_heads, work.kv_head, call.values)),
        scalar(work.at(i, call.heads, work.head, 1)),
        row(scalar * call.values),
        gate(static_cast<A>(read<T>(in[3])[scalar])),
        d(static_cast<A>(read<T>(in[4])[scalar])),
        d_self(static_cast<A>(read<T>(in[5])[scalar])) {}
};

std::vector<Tensor> forward_cpu(const Tensors<6>& in, Scale scale, Cu cu) {
  const Arguments args = check("dense_recurrence", in, cu);
  const Tensors<6> flat = contiguous(in);
  const DenseCall call(args, flat[0], flat[1], /*reads_self=*/false, scale, cu);
  const std::vector<Tensor> out = outputs(args);
  if (out[0].numel() == 0) return out;
  with_block_types(args.dtype(), [&]<typename T, typename O>() {
    using A = kernels::Accumulator<T>;
    const auto prepare = [&](const HeadWork<A>& work) {
      for (int64_t i = 0; i < work.length; ++i) {
        const Token<T> token(flat, call, work, i);
        work.gate[i] = token.gate;
        A* c = work.w + i * work.values;
#pragma omp simd
        for (int64_t x = 0; x < call.values; ++x) {
          c[x] = (token.d + token.d_self) * static_cast<A>(token.v[x]);
        }
      }
    };
    const auto finish = [&](const HeadWork<A>& work) {
      for (int64_t i = 0; i < work.length; ++i) {
        const Token<T> token(flat, call, work, i);
        const A* mix = work.mix + i * work.values;
        T* y = write<T>(out[0]) + token.row;
#pragma omp simd
        for (int64_t x = 0; x < call.values; ++x) {
          y[x] = static_cast<T>(token.d_self * static_cast<A>(token.v[x]) + token.gate * mix[x]);
        }
        std::copy_n(mix, call.values, write<A>(out[1]) + token.row);
        write<A>(out[2])[token.scalar] = work.lse[i];
      }
    };
    dense_forward<T, O>(call, prepare, finish);
  });
  return out;
}

Arguments check_backward(const Tensor& grad_y, at::TensorList kept, const Tensors<6>& in, Cu cu) {
  Arguments args = check("dense_recurrence_backward", in, cu);
  args.tensor("grad_y", grad_y, {"B", "T", "H", "DV"});
  args.kept(kept, 2);
  args.state("mix", kept[0], {"B", "T", "H", "DV"});
  args.state("lse", kept[1], {"B", "T", "H"});
  return args;
}

std::vector<Tensor> backward_meta(const Tensor& grad_y, at::TensorList kept, const Tensors<6>& in,
                                  Scale, Cu cu, Needs needs) {
  check_backward(grad_y, kept, in, cu);
  return gradients(in, needs);
}

std::vector<Tensor> backward_cpu(const Tensor& grad_y, at::TensorList kept, const Tensors<6>& in,
                                 Scale scale, Cu cu, Needs needs) {
  const Arguments args = check_backward(grad_y, kept, in, cu);
  const Tensors<6> flat = contiguous(in);
  const Tensors<3> saved = contiguous(Tensors<3>{grad_y, kept[0], kept[1]});
  const DenseCall call(args, flat[0], flat[1], /*reads_self=*/false, scale, cu);
  const std::vector<Tensor> out = gradients(in, needs);
  if (grad_y.numel() == 0) {
    for (const Tensor& t : out) t.zero_();
    return out;
  }
  with_block_types(args.dtype(), [&]<typename T, typename O>() {
    using A = kernels::Accumulator<T>;
    const auto prepare = [&](const HeadWork<A>& work) {
      for (int64_t i = 0; i < work.length; ++i) {
        const Token<T> token(flat, call, work, i);
        work.gate[i] = token.gate;
        work.lse[i] = read<A>(saved[2])[token.scalar];
        const int64_t at = i * work.values;
#pragma omp simd
        for (int64_t x = 0; x < call.values; ++x) {
          const A mix = read<A>(saved[1])[token.row + x];
          work.mix[at + x] = mix;
          work.w[at + x] = (token.d + token.d_self) * static_cast<A>(token.v[x]) + token.gate * mix;
          work.l[at + x] = static_cast<A>(read<T>(saved[0])[token.row + x]);
        }
      }
    };
    T *d_gate = write_if<T>(needs[3], out[3]), *d_d = write_if<T>(needs[4], out[4]),
      *d_self = write_if<T>(needs[5], out[5]);
    const auto finish = [&](const HeadWork<A>& work) {
      for (int64_t i = 0; i < work.length; ++i) {
        const Token<T> token(flat, call, work, i);
        const A *l = work.l + i * work.values, *mix = work.mix + i * work.values;
        const T* grad = read<T>(saved[0]) + token.row;
        A* dv = work.dv + i * work.values;
        A with_mix = 0, with_v = 0, grad_with_v = 0;
#pragma omp simd reduction(+ : with_mix, with_v, grad_with_v)
        for (int64_t x = 0; x < call.values; ++x) {
          const A v = static_cast<A>(token.v[x]), direct = static_cast<A>(grad[x]);
          with_mix += l[x] * mix[x];
          with_v += l[x] * v;
          grad_with_v += direct * v;
          dv[x] += (token.d + token.d_self) * l[x] - token.d * direct;
        }
        if (d_gate != nullptr) d_gate[token.scalar] = static_cast<T>(with_mix);
        if (d_d != nullptr) d_d[token.scalar] = static_cast<T>(with_v - grad_with_v);
        if (d_self != nullptr) d_self[token.scalar] = static_cast<T>(with_v);
      }
    };
    dense_backward<T, O>(call, if_wanted(needs[0], out[0]), if_wanted(needs[1], out[1]),
                                   if_wanted(needs[2], out[2]), prepare, finish);
  });
  return out;
}

struct Op {
  static constexpr char kName[] = "dense_recurrence";
  static constexpr char kInputs[] =
      "Tensor q, Tensor k, Tensor v, Tensor gate, Tensor d, Tensor d_self";
  static constexpr char kTail[] = "float? scale=None";
  static constexpr auto* kForward = forward_cpu;
  static constexpr auto* kBackward = backward_cpu;
  static constexpr auto* kForwardMeta = forward_meta;
  static constexpr auto* kBackwardMeta = backward_meta;
};
using Operator = Saved<Op, 6, Scale>;

TORCH_LIBRARY_FRAGMENT(hopmix, m) { Operator::define(m); }
TORCH_LIBRARY_IMPL(hopmix, CPU, m) { Operator::implement_cpu(m); }
TORCH_LIBRARY_IMPL(hopmix, Meta, m) { Operator::implement_meta(m); }
TORCH_LIBRARY_IMPL(hopmix, Autograd, m) { Operator::implement_autograd(m); }

}  // namespace

Tensor dense_recurrence(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                        const Tensor& d, const Tensor& d_self, std::optional<double> scale,
                        const std::optional<Tensor>& cu_seqlens) {
  return Operator::call({q, k, v, gate, d, d_self}, scale, cu_seqlens);
}

}  // namespace hopmix::ops
