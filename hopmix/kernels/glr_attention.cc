#include "hopmix/kernels/glr_attention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "hopmix/kernels/glr_attention_loops.h"
#include "hopmix/kernels/head_rows.h"
#include "hopmix/kernels/parallel.h"
#include "hopmix/kernels/row_blocks.h"
#include "hopmix/kernels/row_loops.h"
#include "hopmix/kernels/shared_gradient.h"

namespace hopmix::kernels {
namespace {

template <typename T>
int64_t entries(const GlrAttentionInputs<T>& in) {
  return in.sequences.tokens() * in.heads * in.value_width;
}

// The inputs of one query head.
template <typename T>
struct Head {
  Rows rows;
  HeadOf<const T> k;
  StagedRows<T> q, v;
  StagedScalars<T> gate, d, d_self;

  Head(const GlrAttentionInputs<T>& in, const Sequence& s, int64_t head, int64_t block)
      : rows(in.rows.of(s, head)),
        k(in.k, in.sequences, s, in.kv_heads, kv(in, head), in.key_width),
        q({in.q, in.sequences, s, in.heads, head, in.key_width}, block),
        v({in.v, in.sequences, s, in.kv_heads, kv(in, head), in.value_width}, block),
        gate({in.gate, in.sequences, s, in.heads, head, 1}, block),
        d({in.d, in.sequences, s, in.heads, head, 1}, block),
        d_self({in.d_self, in.sequences, s, in.heads, head, 1}, block) {}

  static int64_t kv(const GlrAttentionInputs<T>& in, int64_t head) {
    return head / (in.heads / in.kv_heads);
  }

  void load(int64_t block, int64_t begin, int64_t end) {
    q.load(block, begin, end);
    v.load(block, begin, end);
    gate.load(block, begin, end);
    d.load(block, begin, end);
    d_self.load(block, begin, end);
  }
};

// Reads of one member's rows, and a number or two for each.
template <typename A>
struct MemberReads {
  Reads reads;
  PerRead<A> p, u;
};

// What the members of a team share: the slots, and the reads of the block in work.
template <typename A>
struct Scratch {
  BlockPlan plan;
  Slots slots;
  int64_t key_width, value_width;  // padded
  PaddedRows<A> k, z;              // by slot, of one stride
  std::vector<MemberReads<A>> members;

  Scratch(const Rows& rows, int64_t length, int64_t keys, int64_t values, int64_t team)
      : plan(rows, length, team),
        slots(rows, length, plan.block),
        key_width(padded(keys)),
        value_width(padded(values)),
        k(by_slot()),
        z(by_slot()),
        members(team) {}

  PaddedRows<A> by_slot() const { return {slots.count(), std::max(key_width, value_width)}; }
};

template <typename T>
GlrAttentionBlock<Accumulator<T>> block_of(const Head<T>& head, int64_t first,
                                           const Scratch<Accumulator<T>>& scratch) {
  GlrAttentionBlock<Accumulator<T>> b{};
  b.first = first;
  b.v = head.v.rows(first);
  b.gate = head.gate.data();
  b.d = head.d.data();
  b.d_self = head.d_self.data();
  b.z = scratch.z.view();
  return b;
}

// The forward pass of one head, by all members of a team at once.
template <typename T, typename Out>
void forward(const GlrAttentionInputs<T>& in, Head<T>& head, const UnstagedRows<Out>& y,
             Scratch<Accumulator<T>>& scratch, const Member& member) {
  using A = Accumulator<T>;
  const auto rows = row_loops<A>();
  const auto enter = enter_loops<T>();
  const auto glr = glr_attention_loops<A>();
  const auto [from, to] = member.share(0, scratch.value_width, kPad);
  MemberReads<A>& own = scratch.members[member.rank()];
  Slots slots = scratch.slots;
  const RowsAt<A> k = scratch.k.view();
  const auto [length, block] = scratch.plan;
  for (int64_t first = 0; first < length; first += block) {
    const int64_t last = std::min(first + block, length);
    const auto [begin, end] = member.share(first, last);
    slots.forward(head.rows, first, last);
    head.load(first, begin, end);
    enter.copy({nullptr, begin, end - begin, &slots}, head.k, k);
    own.reads.assign(head.rows, slots, k.stride, begin, end);
    own.p.resize(own.reads.size());
    member.sync();
    rows.dots(own.reads, head.q.rows(first), k.data, scratch.key_width, static_cast<A>(in.scale),
              own.p);
    rows.softmax(own.reads, own.p);
    member.sync();
    GlrAttentionBlock<A> b = block_of(head, first, scratch);
    b.y = y.rows(first);
    for (const auto& part : scratch.members) glr.solve(b, part.reads, part.p, slots, from, to);
    y.store(first, first, last, from, to);
    member.sync();
  }
}

// The backward of one key/value head, with all query heads that read it.
template <typename T>
class Backward {
 public:
  using A = Accumulator<T>;

  Backward(const GlrAttentionInputs<T>& in, const Sequence& s, int64_t kv_head, const T* y,
           const T* grad_y, const GlrAttentionGradients<T>& out, int64_t team)
      : in_(in),
        scratch_(in.rows.of(s, kv_head * (in.heads / in.kv_heads)), s.length, in.key_width,
                 in.value_width, team),
        dk_by_slot_(scratch_.by_slot()),
        later_(scratch_.by_slot()),
        total_(scratch_.plan.block, in.value_width),
        scalars_(4, scratch_.plan.block),
        exact_y_(kRoundsOutput<T> ? s.length * in.value_width : 0),
        dk_({out.k, in.sequences, s, in.kv_heads, kv_head, in.key_width}, scratch_.plan,
            in.heads / in.kv_heads),
        dv_({out.v, in.sequences, s, in.kv_heads, kv_head, in.value_width}, scratch_.plan,
            in.heads / in.kv_heads) {
    const int64_t group = in.heads / in.kv_heads, block = scratch_.plan.block;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const auto at = [&](auto* x, int64_t width) {
        return HeadOf(x, in.sequences, s, in.heads, head, width);
      };
      heads_.push_back({Head<T>(in, s, head, block),
                        StagedRows<T>(at(grad_y, in.value_width), block),
                        UnstagedRows<T>(at(out.q, in.key_width), block), at(y, in.value_width),
                        at(out.gate, 1), at(out.d, 1), at(out.d_self, 1)});
    }
  }

  void run(const Member& member) {
    for (size_t h = 0; h < heads_.size(); ++h) run(static_cast<int64_t>(h), member);
    scratch_.members[member.rank()] = {};  // to the thread that took it
  }

 private:
  struct QueryHead {
    Head<T> in;
    StagedRows<T> grad_y;
    UnstagedRows<T> dq;
    HeadOf<const T> y;
    HeadOf<T> dgate, dd, dd_self;
  };

  void run(int64_t h, const Member& member);

  // y before it was rounded.
  HeadOf<const A> exact_y(const QueryHead& head) const {
    if constexpr (kRoundsOutput<T>) {
      return {exact_y_.data(), in_.value_width};
    } else {
      return head.y;
    }
  }

  const GlrAttentionInputs<T>& in_;
  Scratch<A> scratch_;
  PaddedRows<A> dk_by_slot_, later_;  // later: what the readers of a token send back to z
  PaddedRows<A> total_, scalars_;     // by row of the block
  Buffer<A> exact_y_;
  SharedGradient<T> dk_, dv_;
  std::vector<QueryHead> heads_;
};

template <typename T>
void Backward<T>::run(int64_t h, const Member& member) {
  QueryHead& head = heads_[h];
  if constexpr (kRoundsOutput<T>) {
    const UnstagedRows<A> y({exact_y_.data(), in_.value_width}, scratch_.plan.block);
    forward(in_, head.in, y, scratch_, member);
  }
  const auto rows = row_loops<A>();
  const auto enter = enter_loops<T>();
  const auto enter_y = enter_loops<A>();
  const auto glr = glr_attention_loops<A>();
  MemberReads<A>& own = scratch_.members[member.rank()];
  Slots slots = scratch_.slots;
  const RowsAt<A> k = scratch_.k.view(), z = scratch_.z.view(), dk = dk_by_slot_.view(),
                  later = later_.view();
  const int64_t key_width = scratch_.key_width, value_width = scratch_.value_width;
  const auto [from, to] = member.share(0, value_width, kPad);
  const auto [key_from, key_to] = member.share(0, key_width, kPad);
  const bool want_logits = head.dq || dk_;
  A *dgate = scalars_[0], *dd = scalars_[1], *dd_self = scalars_[2], *factor = scalars_[3];
  const A scale = static_cast<A>(in_.scale);

  const auto [length, block] = scratch_.plan;
  for (int64_t first = (length - 1) / block * block; first >= 0; first -= block) {
    const int64_t last = std::min(first + block, length);
    const auto [begin, end] = member.share(first, last);
    slots.backward(head.in.rows, first, last);
    const auto [enter_from, enter_to] =
        member.share(0, static_cast<int64_t>(slots.entered().size()));
    in_pieces({slots.entered().data() + enter_from, 0, enter_to - enter_from, &slots},
              [&](const Entering& piece) {
                enter.copy(piece, head.in.k, k);
                enter_y.copy(piece, exact_y(head), z);
                enter.add(piece, head.in.d.head(), head.in.v.head(), z);  // z = y + d v
                enter.zero(piece, key_width, dk);
                enter.zero(piece, value_width, later);
              });
    head.in.load(first, begin, end);
    head.grad_y.load(first, begin, end);
    own.reads.assign(head.in.rows, slots, k.stride, begin, end);
    own.p.resize(own.reads.size());
    own.u.resize(own.reads.size());
    member.sync();

    const BlockRows<const A> q = head.in.q.rows(first);
    rows.dots(own.reads, q, k.data, key_width, scale, own.p);
    rows.softmax(own.reads, own.p);
    member.sync();

    GlrAttentionBlock<A> b = block_of(head.in, first, scratch_);
    b.grad_y = head.grad_y.rows(first);
    b.later = later;
    b.total = {total_.view(), first};
    b.want_dv = static_cast<bool>(dv_);
    b.dv = dv_.rows(first);
    b.dd = head.dd ? dd : nullptr;
    b.dd_self = head.dd_self ? dd_self : nullptr;
    for (size_t part = scratch_.members.size(); part-- > 0;) {
      const MemberReads<A>& theirs = scratch_.members[part];
      glr.solve_transposed(b, theirs.reads, theirs.p, slots, from, to);
    }
    dv_.store(h, first, last, from, to);
    member.sync();

    glr.gate_gradients(b, slots, begin, end, value_width);
    if (head.dgate || want_logits) {
      rows.dots(own.reads, {{total_[0], total_.view().stride}, first}, z.data, value_width, A{1},
                own.u);
      for (int64_t i = begin; i < end; ++i) factor[i - first] = scale * b.gate[i - first];
      rows.softmax_backward(own.reads, own.p, own.u, dgate + (begin - first),
                            want_logits ? factor + (begin - first) : nullptr);
    }
    if (head.dq) {
      rows.gather(own.reads, own.p, k.data, head.dq.rows(first), 0, key_width);
      head.dq.store(first, begin, end, 0, key_width);
    }
    for (const auto& [out, values] :
         {std::pair{head.dgate, dgate}, {head.dd, dd}, {head.dd_self, dd_self}}) {
      for (int64_t i = begin; out && i < end; ++i) *out[i] = static_cast<T>(values[i - first]);
    }
    member.sync();

    if (dk_) {
      for (size_t part = scratch_.members.size(); part-- > 0;) {
        const MemberReads<A>& theirs = scratch_.members[part];
        rows.scatter(theirs.reads, theirs.p, q, dk.data, key_from, key_to);
      }
      dk_.take(dk, slots, first, last, key_from, key_to);
      dk_.store(h, first, last, key_from, key_to);
    }
    member.sync();
  }
}

}  // namespace

template <typename T>
void glr_attention(const GlrAttentionInputs<T>& in, T* y) {
  struct Task {
    Scratch<Accumulator<T>> scratch;
    Head<T> head;
    UnstagedRows<T> y;
  };
  parallel_teams(
      in.sequences.count() * in.heads, entries(in), padded(in.value_width) / kPad,
      [&](int64_t task, int64_t team) {
        const Sequence& s = in.sequences.list[task / in.heads];
        const int64_t head = task % in.heads;
        Scratch<Accumulator<T>> scratch(in.rows.of(s, head), s.length, in.key_width, in.value_width,
                                        team);
        const int64_t block = scratch.plan.block;
        return Task{std::move(scratch), Head<T>(in, s, head, block),
                    UnstagedRows<T>({y, in.sequences, s, in.heads, head, in.value_width}, block)};
      },
      [&](int64_t, Task& task, const Member& member) {
        forward(in, task.head, task.y, task.scratch, member);
        task.scratch.members[member.rank()] = {};  // to the thread that took it
      });
}

template <typename T>
void glr_attention_backward(const GlrAttentionInputs<T>& in, const T* y, const T* grad_y,
                            const GlrAttentionGradients<T>& out) {
  // A task owns a key/value head, so the sums into dk and dv have one order.
  parallel_teams(
      in.sequences.count() * in.kv_heads, entries(in), padded(in.value_width) / kPad,
      [&](int64_t task, int64_t team) {
        const Sequence& s = in.sequences.list[task / in.kv_heads];
        return Backward<T>(in, s, task % in.kv_heads, y, grad_y, out, team);
      },
      [&](int64_t, Backward<T>& task, const Member& member) { task.run(member); });
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
