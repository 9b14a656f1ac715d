#include "hopmix/kernels/dense/attention.h"

#include <algorithm>
#include <optional>

#include "hopmix/kernels/dense/attention_blocks.h"
#include "hopmix/kernels/dense/dense_heads.h"

namespace hopmix::kernels {
namespace {

template <typename T>
DenseCall<T> call_of(const AttentionInputs<T>& in) {
  return {in.q,           in.k,          in.heads, in.kv_heads, in.key_width,
          in.value_width, /*self=*/true, in.scale, in.sequences};
}

template <typename T, typename O>
void forward(const AttentionInputs<T>& in, T* o, const AttentionKept<Accumulator<T>>& kept,
             const AttentionSelection& selection) {
  using A = Accumulator<T>;
  using Blocks = AttentionBlocks<T, O>;
  const DenseCall<T> call = call_of(in);
  const int64_t heads = in.heads, kv_heads = in.kv_heads, group = call.group();
  const int64_t values = in.value_width, kappa = selection.kappa;
  const auto blocks_of = [&](int64_t length) {
    return (length + kAttentionBlock - 1) / kAttentionBlock * group;
  };
  parallel_teams(
      in.sequences.count() * kv_heads, in.sequences.tokens() * heads * in.key_width,
      blocks_of(in.sequences.longest()),
      [&](int64_t task, int64_t) {
        const Sequence& s = in.sequences.list[task / kv_heads];
        return Blocks(call.keys(s, task % kv_heads),
                      call.rows(in.v, s, kv_heads, task % kv_heads, values), in.scale);
      },
      [&](int64_t task, const Blocks& blocks, const Member& member) {
        const Sequence& s = in.sequences.list[task / kv_heads];
        if (s.length == 0) return;
        std::optional<TopScores<A>> best;
        if (kappa > 0) {
          const int64_t candidates = (s.length + selection.block - 1) / selection.block;
          best.emplace(kAttentionBlock, TopShape{std::min(kappa, candidates), selection.block});
        }
        typename Blocks::Block block(blocks);
        for (int64_t t = member.rank(); t < blocks_of(s.length); t += member.size()) {
          const int64_t head = task % kv_heads * group + t % group;
          const int64_t first = t / group * kAttentionBlock;
          const int64_t token = in.sequences.first_token(s) + first;
          const int64_t n = std::min(kAttentionBlock, s.length - first);
          blocks.forward(call.queries(s, head), first, selection.self, block,
                         best ? &*best : nullptr);
          store_rows<T>(block.mix + 0, block.stride, token, n, o, heads, head, values);
          store_rows<A>(block.mix + 0, block.stride, token, n, kept.mix, heads, head, values);
          store_rows<A>(block.lse + 0, 1, token, n, kept.lse, heads, head, 1);
          for (int64_t i = 0; i < n && best; ++i) {
            best->take(i, kappa, selection.indices + head_offset(token + i, heads, head, kappa));
          }
        }
        release_gemm();
      });
}

template <typename T, typename O>
void backward(const AttentionInputs<T>& in, const T* grad_o,
              const AttentionKept<const Accumulator<T>>& kept, const AttentionGradients<T>& out) {
  using A = Accumulator<T>;
  const DenseCall<T> call = call_of(in);
  const int64_t heads = in.heads, kv_heads = in.kv_heads, group = call.group();
  const int64_t width = in.key_width, values = in.value_width;
  const int64_t keys = padded(width), padded_values = padded(values);
  parallel_tasks(in.sequences.count() * kv_heads, call.entries(), [&](int64_t task) {
    const Sequence& s = in.sequences.list[task / kv_heads];
    if (s.length == 0) return;
    const int64_t kv_head = task % kv_heads, token = in.sequences.first_token(s);
    const int64_t rows = padded(s.length);
    const Buffer<A> dk = zeros<A>(rows * keys), dv = zeros<A>(rows * padded_values);
    const Buffer<A> dq(rows * keys);
    const auto scale = [&](A* x) {
      for (int64_t c = 0; c < s.length * keys; ++c) x[c] *= static_cast<A>(in.scale);
    };
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const AttentionHead<T> one = {call.queries(s, head),
                                    call.keys(s, kv_head),
                                    call.rows(in.v, s, kv_heads, kv_head, values),
                                    call.rows(grad_o, s, heads, head, values),
                                    kept.mix + head_offset(token, heads, head, values),
                                    kept.lse + head_offset(token, heads, head, 1),
                                    heads,
                                    in.scale};
      attention_head_backward<T, O>(one, dq, dk, dv);
      scale(dq);
      store_rows<T>(dq + 0, keys, token, s.length, out.q, heads, head, width);
    }
    scale(dk);
    store_rows<T>(dk + 0, keys, token, s.length, out.k, kv_heads, kv_head, width);
    store_rows<T>(dv + 0, padded_values, token, s.length, out.v, kv_heads, kv_head, values);
    release_gemm();
  });
}

}  // namespace

template <typename T>
void attention(const AttentionInputs<T>& in, T* o, const AttentionKept<Accumulator<T>>& kept,
               const AttentionSelection& selection) {
  with_operands<T>([&]<typename O>() { forward<T, O>(in, o, kept, selection); });
}

template <typename T>
void attention_backward(const AttentionInputs<T>& in, const T* grad_o,
                        const AttentionKept<const Accumulator<T>>& kept,
                        const AttentionGradients<T>& out) {
  with_operands<T>([&]<typename O>() { backward<T, O>(in, grad_o, kept, out); });
}

template void attention(const AttentionInputs<float>&, float*, const AttentionKept<float>&,
                        const AttentionSelection&);
template void attention(const AttentionInputs<double>&, double*, const AttentionKept<double>&,
                        const AttentionSelection&);
template void attention(const AttentionInputs<Bfloat16>&, Bfloat16*, const AttentionKept<float>&,
                        const AttentionSelection&);
template void attention_backward(const AttentionInputs<float>&, const float*,
                                 const AttentionKept<const float>&,
                                 const AttentionGradients<float>&);
template void attention_backward(const AttentionInputs<double>&, const double*,
                                 const AttentionKept<const double>&,
                                 const AttentionGradients<double>&);
template void attention_backward(const AttentionInputs<Bfloat16>&, const Bfloat16*,
                                 const AttentionKept<const float>&,
                                 const AttentionGradients<Bfloat16>&);

}  // namespace hopmix::kernels
