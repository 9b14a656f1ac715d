#include "hopmix/kernels/glr_attention.h"

#include <span>
#include <vector>

#include "hopmix/kernels/parallel.h"
#include "hopmix/kernels/softmax.h"
#include "hopmix/kernels/vec.h"

namespace hopmix::kernels {
namespace {

// What belongs to one query head alone.
template <typename A>
struct QueryHead {
  Head<A> q, gate, d, d_self;
};

template <typename T>
QueryHead<Accumulator<T>> load_query_head(const GlrAttentionInputs<T>& in, const Sequence& s,
                                          int64_t head) {
  const auto load = [&](const T* from, int64_t width) {
    return load_head(from, in.sequences, s, in.heads, head, width);
  };
  return {load(in.q, in.key_width), load(in.gate, 1), load(in.d, 1), load(in.d_self, 1)};
}

template <typename A>
Head<A> solve(const QueryHead<A>& h, const Head<A>& k, const Head<A>& v, const Rows& rows,
              A scale) {
  Head<A> z(v.length, v.width);
  std::vector<int32_t> scratch;
  std::vector<A> p;
  for (int64_t i = 0; i < v.length; ++i) {
    const std::span<const int32_t> cols = rows.row(i, scratch);
    softmax_row(h.q[i], k, cols, scale, p);
    axpy(*h.d[i] + *h.d_self[i], v[i], z[i], v.width);
    for (size_t r = 0; r < cols.size(); ++r) axpy(*h.gate[i] * p[r], z[cols[r]], z[i], v.width);
  }
  return z;
}

// z and y differ by d v: sign = -1 takes z to y, +1 takes y back to z.
template <typename A>
void add_direct(A sign, const QueryHead<A>& h, const Head<A>& v, Head<A>& z) {
  for (int64_t i = 0; i < v.length; ++i) axpy(sign * *h.d[i], v[i], z[i], v.width);
}

// Gradients of one query head; dk and dv gather those of all heads that share k and v.
template <typename A>
struct QueryHeadGradients {
  Head<A> q, gate, d, d_self;
};

template <typename A>
QueryHeadGradients<A> backward(const QueryHead<A>& h, const Head<A>& k, const Head<A>& v,
                               const Head<A>& z, const Head<A>& grad_y, const Rows& rows, A scale,
                               bool logits, Head<A>& dk, Head<A>& dv) {
  const int64_t length = v.length, width = v.width;
  QueryHeadGradients<A> out{{length, k.width}, {length, 1}, {length, 1}, {length, 1}};

  // later_i: what the readers of token i send back, complete when i is reached; dLoss/dz_i =
  // grad_y_i + later_i.
  Head<A> later(length, width);
  std::vector<A> total(width), p, u;
  std::vector<int32_t> scratch;
  for (int64_t i = length - 1; i >= 0; --i) {
    const A* g = grad_y[i];
    for (int64_t c = 0; c < width; ++c) total[c] = g[c] + later[i][c];
    *out.d[i] = dot(later[i], v[i], width);  // z_i and y_i = z_i - d_i v_i: grad_y cancels
    *out.d_self[i] = dot(total.data(), v[i], width);
    axpy(*h.d[i], later[i], dv[i], width);
    axpy(*h.d_self[i], total.data(), dv[i], width);

    const std::span<const int32_t> cols = rows.row(i, scratch);
    const A gate = *h.gate[i];
    softmax_row(h.q[i], k, cols, scale, p);
    u.resize(cols.size());
    for (size_t r = 0; r < cols.size(); ++r) {
      u[r] = dot(total.data(), z[cols[r]], width);
      axpy(gate * p[r], total.data(), later[cols[r]], width);
    }
    *out.gate[i] = dot(p.data(), u.data(), static_cast<int64_t>(p.size()));
    if (logits) {
      for (A& x : u) x *= gate;
      softmax_row_backward(p, u, h.q[i], k, cols, scale, out.q[i], dk);
    }
  }
  return out;
}

template <typename T>
int64_t entries(const GlrAttentionInputs<T>& in) {
  return in.sequences.tokens() * in.heads * in.value_width;
}

}  // namespace

template <typename T>
void glr_attention(const GlrAttentionInputs<T>& in, T* y) {
  using A = Accumulator<T>;
  const int64_t group = in.heads / in.kv_heads;
  parallel_tasks(in.sequences.count() * in.heads, entries(in), [&](int64_t task) {
    const Sequence& s = in.sequences.list[task / in.heads];
    const int64_t head = task % in.heads;
    const auto load = [&](const T* from, int64_t width) {
      return load_head(from, in.sequences, s, in.kv_heads, head / group, width);
    };
    const Head<A> v = load(in.v, in.value_width);
    const QueryHead<A> h = load_query_head(in, s, head);
    Head<A> z = solve(h, load(in.k, in.key_width), v, in.rows, static_cast<A>(in.scale));
    add_direct(A{-1}, h, v, z);
    store_head(z, in.sequences, s, in.heads, head, y);
  });
}

template <typename T>
void glr_attention_backward(const GlrAttentionInputs<T>& in, const T* y, const T* grad_y,
                            const GlrAttentionGradients<T>& out) {
  using A = Accumulator<T>;
  const int64_t group = in.heads / in.kv_heads;
  const A scale = static_cast<A>(in.scale);
  // A task owns a key/value head, so the sums into dk and dv have one order.
  parallel_tasks(in.sequences.count() * in.kv_heads, entries(in), [&](int64_t task) {
    const Sequence& s = in.sequences.list[task / in.kv_heads];
    const int64_t kv_head = task % in.kv_heads;
    const auto load = [&](const T* from, int64_t heads, int64_t head, int64_t width) {
      return load_head(from, in.sequences, s, heads, head, width);
    };
    const Head<A> k = load(in.k, in.kv_heads, kv_head, in.key_width);
    const Head<A> v = load(in.v, in.kv_heads, kv_head, in.value_width);
    Head<A> dk(s.length, in.key_width), dv(s.length, in.value_width);

    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const QueryHead<A> h = load_query_head(in, s, head);
      Head<A> z(0, 0);
      if constexpr (kRoundsOutput<T>) {
        z = solve(h, k, v, in.rows, scale);
      } else {
        z = load(y, in.heads, head, in.value_width);
        add_direct(A{1}, h, v, z);
      }
      const Head<A> grad = load(grad_y, in.heads, head, in.value_width);
      const auto grads = backward(h, k, v, z, grad, in.rows, scale, out.q || out.k, dk, dv);
      store_head(grads.q, in.sequences, s, in.heads, head, out.q);
      store_head(grads.gate, in.sequences, s, in.heads, head, out.gate);
      store_head(grads.d, in.sequences, s, in.heads, head, out.d);
      store_head(grads.d_self, in.sequences, s, in.heads, head, out.d_self);
    }
    store_head(dk, in.sequences, s, in.kv_heads, kv_head, out.k);
    store_head(dv, in.sequences, s, in.kv_heads, kv_head, out.v);
  });
}

template void glr_attention(const GlrAttentionInputs<float>&, float*);
template void glr_attention(const GlrAttentionInputs<double>&, double*);
template void glr_attention(const GlrAttentionInputs<Bfloat16>&, Bfloat16*);
template void glr_attention_backward(const GlrAttentionInputs<float>&, const float*, const float*,
                                     const GlrAttentionGradients<float>&);
template void glr_attention_backward(const GlrAttentionInputs<double>&, const double*,
                                     const double*, const GlrAttentionGradients<double>&);
template void glr_attention_backward(const GlrAttentionInputs<Bfloat16>&, const Bfloat16*,
                                     const Bfloat16*, const GlrAttentionGradients<Bfloat16>&);

}  // namespace hopmix::kernels
