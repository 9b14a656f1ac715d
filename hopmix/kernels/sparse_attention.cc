#include "hopmix/kernels/sparse_attention.h"

#include <span>
#include <vector>

#include "hopmix/kernels/parallel.h"
#include "hopmix/kernels/softmax.h"
#include "hopmix/kernels/vec.h"

namespace hopmix::kernels {
namespace {

// Row i of the pattern, with i itself at its end where that is wanted.
class Reads {
 public:
  Reads(const Rows& rows, bool include_self) : rows_(rows), include_self_(include_self) {}

  std::span<const int32_t> row(int64_t i) {
    const std::span<const int32_t> strict = rows_.row(i, scratch_);
    if (!include_self_) return strict;
    with_self_.assign(strict.begin(), strict.end());
    with_self_.push_back(static_cast<int32_t>(i));
    return with_self_;
  }

 private:
  const Rows& rows_;
  bool include_self_;
  std::vector<int32_t> scratch_, with_self_;
};

template <typename T>
int64_t entries(const SparseAttentionInputs<T>& in) {
  return in.sequences.tokens() * in.heads * in.value_width;
}

}  // namespace

template <typename T>
void sparse_attention(const SparseAttentionInputs<T>& in, T* y) {
  using A = Accumulator<T>;
  const int64_t group = in.heads / in.kv_heads;
  parallel_tasks(in.sequences.count() * in.heads, entries(in), [&](int64_t task) {
    const Sequence& s = in.sequences.list[task / in.heads];
    const int64_t head = task % in.heads;
    const auto load = [&](const T* from, int64_t heads, int64_t which, int64_t width) {
      return load_head(from, in.sequences, s, heads, which, width);
    };
    const Head<A> q = load(in.q, in.heads, head, in.key_width);
    const Head<A> k = load(in.k, in.kv_heads, head / group, in.key_width);
    const Head<A> v = load(in.v, in.kv_heads, head / group, in.value_width);
    Head<A> sum(s.length, in.value_width);
    Reads reads(in.rows, in.include_self);
    std::vector<A> p;
    for (int64_t i = 0; i < s.length; ++i) {
      const std::span<const int32_t> cols = reads.row(i);
      softmax_row(q[i], k, cols, static_cast<A>(in.scale), p);
      for (size_t r = 0; r < cols.size(); ++r) axpy(p[r], v[cols[r]], sum[i], in.value_width);
    }
    store_head(sum, in.sequences, s, in.heads, head, y);
  });
}

template <typename T>
void sparse_attention_backward(const SparseAttentionInputs<T>& in, const T* grad_y,
                               const SparseAttentionGradients<T>& out) {
  using A = Accumulator<T>;
  const int64_t group = in.heads / in.kv_heads;
  // A task owns a key/value head, so the sums into dk and dv have one order.
  parallel_tasks(in.sequences.count() * in.kv_heads, entries(in), [&](int64_t task) {
    const Sequence& s = in.sequences.list[task / in.kv_heads];
    const int64_t kv_head = task % in.kv_heads;
    const auto load = [&](const T* from, int64_t heads, int64_t which, int64_t width) {
      return load_head(from, in.sequences, s, heads, which, width);
    };
    const Head<A> k = load(in.k, in.kv_heads, kv_head, in.key_width);
    const Head<A> v = load(in.v, in.kv_heads, kv_head, in.value_width);
    Head<A> dk(s.length, in.key_width), dv(s.length, in.value_width);

    Reads reads(in.rows, in.include_self);
    std::vector<A> p, u;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const Head<A> q = load(in.q, in.heads, head, in.key_width);
      const Head<A> g = load(grad_y, in.heads, head, in.value_width);
      Head<A> dq(s.length, in.key_width);
      for (int64_t i = 0; i < s.length; ++i) {
        const std::span<const int32_t> cols = reads.row(i);
        softmax_row(q[i], k, cols, static_cast<A>(in.scale), p);
        if (out.v) {
          for (size_t r = 0; r < cols.size(); ++r) axpy(p[r], g[i], dv[cols[r]], in.value_width);
        }
        if (out.q || out.k) {
          u.resize(cols.size());
          for (size_t r = 0; r < cols.size(); ++r) u[r] = dot(g[i], v[cols[r]], in.value_width);
          softmax_row_backward(p, u, q[i], k, cols, static_cast<A>(in.scale), dq[i], dk);
        }
      }
      store_head(dq, in.sequences, s, in.heads, head, out.q);
    }
    store_head(dk, in.sequences, s, in.kv_heads, kv_head, out.k);
    store_head(dv, in.sequences, s, in.kv_heads, kv_head, out.v);
  });
}

template void sparse_attention(const SparseAttentionInputs<float>&, float*);
template void sparse_attention(const SparseAttentionInputs<double>&, double*);
template void sparse_attention(const SparseAttentionInputs<Bfloat16>&, Bfloat16*);
template void sparse_attention_backward(const SparseAttentionInputs<float>&, const float*,
                                        const SparseAttentionGradients<float>&);
template void sparse_attention_backward(const SparseAttentionInputs<double>&, const double*,
                                        const SparseAttentionGradients<double>&);
template void sparse_attention_backward(const SparseAttentionInputs<Bfloat16>&, const Bfloat16*,
                                        const SparseAttentionGradients<Bfloat16>&);

}  // namespace hopmix::kernels
