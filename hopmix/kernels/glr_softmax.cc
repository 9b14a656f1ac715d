#include "hopmix/kernels/glr_softmax.h"

#include <span>
#include <vector>

#include "hopmix/kernels/joint_row.h"
#include "hopmix/kernels/parallel.h"
#include "hopmix/kernels/vec.h"

namespace hopmix::kernels {
namespace {

// What belongs to one query head alone.
template <typename A>
struct QueryHead {
  Head<A> q, d, d_self, g;
  A scale;
  bool gate_on_read;

  A gate(int64_t i, int32_t j) const { return gate_on_read ? *g[j] : *g[i]; }
};

template <typename T>
QueryHead<Accumulator<T>> load_query_head(const GlrSoftmaxInputs<T>& in, const Sequence& s,
                                          int64_t head) {
  const auto load = [&](const T* from, int64_t width) {
    return load_head(from, in.sequences, s, in.heads, head, width);
  };
  return {load(in.q, in.key_width),
          load(in.d, 1),
          load(in.d_self, 1),
          load(in.g, 1),
          static_cast<Accumulator<T>>(in.scale),
          in.gate_on_read};
}

template <typename A>
void weigh(const QueryHead<A>& h, const Head<A>& k, std::span<const int32_t> cols, int64_t i,
           JointRow<A>& row) {
  row.resize(cols.size());
  row.self = *h.d_self[i];
  for (size_t r = 0; r < cols.size(); ++r) {
    const A score = h.scale * dot(h.q[i], k[cols[r]], k.width);
    row.direct[r] = score + *h.d[cols[r]];
    row.recurrent[r] = score + h.gate(i, cols[r]);
  }
  joint_softmax(row);
}

template <typename A>
Head<A> solve(const QueryHead<A>& h, const Head<A>& k, const Head<A>& v, const Rows& rows) {
  Head<A> y(v.length, v.width);
  std::vector<int32_t> scratch;
  JointRow<A> weights;
  for (int64_t i = 0; i < v.length; ++i) {
    const std::span<const int32_t> cols = rows.row(i, scratch);
    weigh(h, k, cols, i, weights);
    mix(weights, cols, i, v, y);
  }
  return y;
}

// Gradients of one query head; dk and dv gather those of all heads that share k and v.
template <typename A>
struct QueryHeadGradients {
  Head<A> q, d, d_self, g;
};

// `lambda` is dLoss/dy and becomes (I - B)^{-T} of it.
template <typename A>
QueryHeadGradients<A> backward(const QueryHead<A>& h, const Head<A>& k, const Head<A>& v,
                               const Head<A>& y, Head<A> lambda, const Rows& rows, bool logits,
                               Head<A>& dk, Head<A>& dv) {
  const int64_t length = v.length;
  QueryHeadGradients<A> out{{length, k.width}, {length, 1}, {length, 1}, {length, 1}};
  std::vector<int32_t> scratch;
  JointRow<A> weights, slopes;
  for (int64_t i = length - 1; i >= 0; --i) {
    const std::span<const int32_t> cols = rows.row(i, scratch);
    weigh(h, k, cols, i, weights);
    mix_backward(weights, cols, i, v, y, lambda, dv, slopes);
    *out.d_self[i] = slopes.self;
    for (size_t r = 0; r < cols.size(); ++r) {
      const int32_t j = cols[r];
      *out.d[j] += slopes.direct[r];
      *out.g[h.gate_on_read ? j : i] += slopes.recurrent[r];
      if (logits) {
        const A ds = h.scale * (slopes.direct[r] + slopes.recurrent[r]);
        axpy(ds, k[j], out.q[i], k.width);
        axpy(ds, h.q[i], dk[j], k.width);
      }
    }
  }
  return out;
}

template <typename T>
int64_t entries(const GlrSoftmaxInputs<T>& in) {
  return in.sequences.tokens() * in.heads * in.value_width;
}

}  // namespace

template <typename T>
void glr_softmax(const GlrSoftmaxInputs<T>& in, T* y) {
  const int64_t group = in.heads / in.kv_heads;
  parallel_tasks(in.sequences.count() * in.heads, entries(in), [&](int64_t task) {
    const Sequence& s = in.sequences.list[task / in.heads];
    const int64_t head = task % in.heads;
    const auto load = [&](const T* from, int64_t width) {
      return load_head(from, in.sequences, s, in.kv_heads, head / group, width);
    };
    store_head(solve(load_query_head(in, s, head), load(in.k, in.key_width),
                     load(in.v, in.value_width), in.rows),
               in.sequences, s, in.heads, head, y);
  });
}

template <typename T>
void glr_softmax_backward(const GlrSoftmaxInputs<T>& in, const T* y, const T* grad_y,
                          const GlrSoftmaxGradients<T>& out) {
  using A = Accumulator<T>;
  const int64_t group = in.heads / in.kv_heads;
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
      const Head<A> solved =
          kRoundsOutput<T> ? solve(h, k, v, in.rows) : load(y, in.heads, head, in.value_width);
      const auto grads = backward(h, k, v, solved, load(grad_y, in.heads, head, in.value_width),
                                  in.rows, out.q || out.k, dk, dv);
      store_head(grads.q, in.sequences, s, in.heads, head, out.q);
      store_head(grads.d, in.sequences, s, in.heads, head, out.d);
      store_head(grads.d_self, in.sequences, s, in.heads, head, out.d_self);
      store_head(grads.g, in.sequences, s, in.heads, head, out.g);
    }
    store_head(dk, in.sequences, s, in.kv_heads, kv_head, out.k);
    store_head(dv, in.sequences, s, in.kv_heads, kv_head, out.v);
  });
}

template void glr_softmax(const GlrSoftmaxInputs<float>&, float*);
template void glr_softmax(const GlrSoftmaxInputs<double>&, double*);
template void glr_softmax(const GlrSoftmaxInputs<Bfloat16>&, Bfloat16*);
template void glr_softmax_backward(const GlrSoftmaxInputs<float>&, const float*, const float*,
                                   const GlrSoftmaxGradients<float>&);
template void glr_softmax_backward(const GlrSoftmaxInputs<double>&, const double*, const double*,
                                   const GlrSoftmaxGradients<double>&);
template void glr_softmax_backward(const GlrSoftmaxInputs<Bfloat16>&, const Bfloat16*,
                                   const Bfloat16*, const GlrSoftmaxGradients<Bfloat16>&);

}  // namespace hopmix::kernels
