#include "hopmix/kernels/sparse_attention.h"

#include <algorithm>
#include <vector>

#include "hopmix/kernels/head_rows.h"
#include "hopmix/kernels/parallel.h"
#include "hopmix/kernels/row_blocks.h"
#include "hopmix/kernels/row_loops.h"
#include "hopmix/kernels/shared_gradient.h"

namespace hopmix::kernels {
namespace {

template <typename T>
int64_t entries(const SparseAttentionInputs<T>& in) {
  return in.sequences.tokens() * in.heads * in.value_width;
}

// Nothing is sequential here: a team shares a long sequence by its rows, and the backward by
// columns only where rows add into keys and values.
template <typename A>
struct MemberReads {
  Reads reads;
  PerRead<A> p, ds, u;
};

template <typename T>
class Heads {
 public:
  using A = Accumulator<T>;

  Heads(const SparseAttentionInputs<T>& in, const Sequence& s, int64_t kv_head, int64_t first_head,
        int64_t count, T* y, const T* grad_y, const SparseAttentionGradients<T>& out, int64_t team)
      : in_(in),
        plan_(in.rows, s.length, team),
        slots_(in.rows, s.length, plan_.block),
        key_width_(padded(in.key_width)),
        value_width_(padded(in.value_width)),
        kv_(slots_.count(), key_width_ + value_width_),
        back_(grad_y ? slots_.count() : 0, key_width_ + value_width_),
        k_(in.k, in.sequences, s, in.kv_heads, kv_head, in.key_width),
        v_(in.v, in.sequences, s, in.kv_heads, kv_head, in.value_width),
        dk_({out.k, in.sequences, s, in.kv_heads, kv_head, in.key_width}, plan_, count),
        dv_({out.v, in.sequences, s, in.kv_heads, kv_head, in.value_width}, plan_, count),
        members_(team) {
    for (int64_t head = first_head; head < first_head + count; ++head) {
      const auto at = [&](auto* x, int64_t width) {
        return HeadOf(x, in.sequences, s, in.heads, head, width);
      };
      heads_.push_back({{at(in.q, in.key_width), plan_.block},
                        {at(grad_y, in.value_width), plan_.block},
                        {at(y, in.value_width), plan_.block},
                        {at(out.q, in.key_width), plan_.block}});
    }
  }

  void forward(const Member& member) {
    Slots slots = slots_;
    const auto [length, block] = plan_;
    for (int64_t first = 0; first < length; first += block) {
      const int64_t last = std::min(first + block, length);
      const auto [begin, end] = member.share(first, last);
      slots.forward(in_.rows, first, last);
      enter({nullptr, begin, end - begin, &slots});
      member.sync();
      MemberReads<A>& own = members_[member.rank()];
      softmax(heads_[0], own, slots, first, begin, end);
      const UnstagedRows<T>& y = heads_[0].y;
      rows_.gather(own.reads, own.p, v(kv_).data, y.rows(first), 0, value_width_);
      y.store(first, begin, end, 0, value_width_);
      member.sync();
    }
    members_[member.rank()] = {};  // to the thread that took it
  }

  void backward(const Member& member) {
    for (size_t h = 0; h < heads_.size(); ++h) backward(static_cast<int64_t>(h), member);
    members_[member.rank()] = {};  // to the thread that took it
  }

 private:
  struct QueryHead {
    StagedRows<T> q, grad_y;
    UnstagedRows<T> y, dq;
  };

  RowsAt<A> k(const PaddedRows<A>& by_slot) const { return by_slot.view(); }
  RowsAt<A> v(const PaddedRows<A>& by_slot) const {
    return {by_slot.view().data + key_width_, by_slot.view().stride};
  }

  void enter(const Entering& entering) const {
    enter_.copy(entering, k_, k(kv_));
    enter_.copy(entering, v_, v(kv_));
  }

  // p of rows [begin, end).
  void softmax(const QueryHead& head, MemberReads<A>& own, const Slots& slots, int64_t first,
               int64_t begin, int64_t end) const {
    head.q.load(first, begin, end);
    own.reads.assign(in_.rows, slots, k(kv_).stride, begin, end, in_.include_self);
    own.p.resize(own.reads.size());
    rows_.dots(own.reads, head.q.rows(first), k(kv_).data, key_width_, static_cast<A>(in_.scale),
               own.p);
    rows_.softmax(own.reads, own.p);
  }

  void backward(int64_t h, const Member& member);

  const RowLoops<A> rows_ = row_loops<A>();
  const EnterLoops<T> enter_ = enter_loops<T>();
  const SparseAttentionInputs<T>& in_;
  BlockPlan plan_;
  Slots slots_;
  int64_t key_width_, value_width_;  // padded
  PaddedRows<A> kv_, back_;          // by slot: k and v; their gradients
  HeadOf<const T> k_, v_;
  SharedGradient<T> dk_, dv_;
  std::vector<QueryHead> heads_;
  std::vector<MemberReads<A>> members_;
};

template <typename T>
void Heads<T>::backward(int64_t h, const Member& member) {
  QueryHead& head = heads_[h];
  MemberReads<A>& own = members_[member.rank()];
  Slots slots = slots_;
  const auto [key_from, key_to] = member.share(0, key_width_, kPad);
  const auto [from, to] = member.share(0, value_width_, kPad);
  const RowsAt<A> dk = k(back_), dv = v(back_);
  const bool want_logits = head.dq || dk_;
  std::vector<A> factor(plan_.block, static_cast<A>(in_.scale));

  const auto [length, block] = plan_;
  for (int64_t first = (length - 1) / block * block; first >= 0; first -= block) {
    const int64_t last = std::min(first + block, length);
    const auto [begin, end] = member.share(first, last);
    slots.backward(in_.rows, first, last);
    const auto [enter_from, enter_to] =
        member.share(0, static_cast<int64_t>(slots.entered().size()));
    const Entering entering{slots.entered().data() + enter_from, 0, enter_to - enter_from, &slots};
    enter(entering);
    enter_.zero(entering, key_width_ + value_width_, k(back_));
    head.grad_y.load(first, begin, end);
    member.sync();

    softmax(head, own, slots, first, begin, end);
    const BlockRows<const A> q = head.q.rows(first), g = head.grad_y.rows(first);
    if (want_logits) {
      own.u.resize(own.reads.size());
      own.ds.resize(own.reads.size());
      rows_.dots(own.reads, g, v(kv_).data, value_width_, A{1}, own.u);
      std::copy_n(own.p.data(), own.reads.size(), own.ds.data());
      rows_.softmax_backward(own.reads, own.ds, own.u, nullptr, factor.data());
    }
    if (head.dq) {
      rows_.gather(own.reads, own.ds, k(kv_).data, head.dq.rows(first), 0, key_width_);
      head.dq.store(first, begin, end, 0, key_width_);
    }
    member.sync();

    for (size_t part = members_.size(); part-- > 0;) {
      const MemberReads<A>& theirs = members_[part];
      if (dk_) rows_.scatter(theirs.reads, theirs.ds, q, dk.data, key_from, key_to);
      if (dv_) rows_.scatter(theirs.reads, theirs.p, g, dv.data, from, to);
    }
    if (dk_) dk_.take(dk, slots, first, last, key_from, key_to);
    if (dv_) dv_.take(dv, slots, first, last, from, to);
    dk_.store(h, first, last, key_from, key_to);
    dv_.store(h, first, last, from, to);
    member.sync();
  }
}

}  // namespace

template <typename T>
void sparse_attention(const SparseAttentionInputs<T>& in, T* y) {
  const int64_t group = in.heads / in.kv_heads;
  parallel_teams(
      in.sequences.count() * in.heads, entries(in), kAnyTeam,
      [&](int64_t task, int64_t team) {
        const Sequence& s = in.sequences.list[task / in.heads];
        const int64_t head = task % in.heads;
        return Heads<T>(in, s, head / group, head, 1, y, nullptr, {}, team);
      },
      [&](int64_t, Heads<T>& task, const Member& member) { task.forward(member); });
}

template <typename T>
void sparse_attention_backward(const SparseAttentionInputs<T>& in, const T* grad_y,
                               const SparseAttentionGradients<T>& out) {
  const int64_t group = in.heads / in.kv_heads;
  // A task owns a key/value head, so the sums into dk and dv have one order.
  parallel_teams(
      in.sequences.count() * in.kv_heads, entries(in), kAnyTeam,
      [&](int64_t task, int64_t team) {
        const Sequence& s = in.sequences.list[task / in.kv_heads];
        const int64_t kv_head = task % in.kv_heads;
        return Heads<T>(in, s, kv_head, kv_head * group, group, nullptr, grad_y, out, team);
      },
      [&](int64_t, Heads<T>& task, const Member& member) { task.backward(member); });
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
