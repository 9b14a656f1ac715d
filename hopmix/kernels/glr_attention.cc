#include "hopmix/kernels/glr_attention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "hopmix/kernels/glr_attention_loops.h"
#include "hopmix/kernels/head_rows.h"
#include "hopmix/kernels/parallel.h"
#include "hopmix/kernels/row_blocks.h"

namespace hopmix::kernels {
namespace {

template <typename T>
int64_t entries(const GlrAttentionInputs<T>& in) {
  return in.sequences.tokens() * in.heads * in.value_width;
}

// The inputs of one query head, as the loops read them.
template <typename T>
struct Head {
  using A = Accumulator<T>;
  StagedRows<T> q, v;
  StagedScalars<T> gate, d, d_self;
  HeadOf<const T> k;

  Head(const GlrAttentionInputs<T>& in, const Sequence& s, int64_t head, int64_t block)
      : q(of(in, in.q, s, in.heads, head, in.key_width), block),
        v(of(in, in.v, s, in.kv_heads, head / (in.heads / in.kv_heads), in.value_width), block),
        gate(of(in, in.gate, s, in.heads, head, 1), block),
        d(of(in, in.d, s, in.heads, head, 1), block),
        d_self(of(in, in.d_self, s, in.heads, head, 1), block),
        k(of(in, in.k, s, in.kv_heads, head / (in.heads / in.kv_heads), in.key_width)) {}

  static HeadOf<const T> of(const GlrAttentionInputs<T>& in, const T* x, const Sequence& s,
                            int64_t heads, int64_t head, int64_t width) {
    return {x, in.sequences, s, heads, head, width};
  }

  void load(int64_t block, int64_t begin, int64_t end) {
    q.load(block, begin, end);
    v.load(block, begin, end);
    gate.load(block, begin, end);
    d.load(block, begin, end);
    d_self.load(block, begin, end);
  }

  void view(int64_t block, GlrBlock<A>& b) const {
    b.first = block;
    b.q = q.rows(block);
    b.v = v.rows(block);
    b.gate = gate.data();
    b.d = d.data();
    b.d_self = d_self.data();
  }
};

// What the members of a team share: the slots and the reads of the block in work.
template <typename A>
struct Scratch {
  BlockPlan plan;
  Slots slots;
  int64_t key_width, value_width;  // padded
  PaddedRows<A> kz;                // by slot: k and z
  std::vector<GlrReads<A>> reads;  // one a member

  Scratch(const Rows& rows, int64_t length, int64_t k, int64_t v, int64_t members)
      : plan(rows, length, members),
        slots(rows, length, plan.block),
        key_width(padded(k)),
        value_width(padded(v)),
        kz(slots.count(), key_width + value_width),
        reads(members) {}

  GlrBlock<A> block(double scale) const {
    GlrBlock<A> b{};
    b.k = kz.view();
    b.z = {b.k.data + key_width, b.k.stride};
    b.key_width = key_width;
    b.value_width = value_width;
    b.scale = static_cast<A>(scale);
    return b;
  }
};

// The forward pass of one head, by all members of a team at once.
template <typename T, typename Out>
void forward(const GlrAttentionInputs<T>& in, Head<T>& head, const UnstagedRows<Out>& y,
             Scratch<Accumulator<T>>& scratch, const Member& member) {
  using A = Accumulator<T>;
  const GlrLoops<A> loops = glr_loops<A>();
  const auto [from, to] = member.share(0, scratch.value_width, kPad);
  GlrReads<A>& own = scratch.reads[member.rank()];
  Slots slots = scratch.slots;
  const GlrEnter<T> enter = glr_enter<T>();
  GlrBlock<A> b = scratch.block(in.scale);
  const auto [length, block] = scratch.plan;
  for (int64_t first = 0; first < length; first += block) {
    const int64_t last = std::min(first + block, length);
    const auto [begin, end] = member.share(first, last);
    slots.forward(in.rows, first, last);
    head.load(first, begin, end);
    enter(b, {nullptr, begin, end - begin, head.k, head.v.head(), head.d.head()}, slots);
    own.reads.assign(in.rows, slots, b.k.stride, begin, end);
    own.p.resize(own.reads.size());
    head.view(first, b);
    b.y = y.rows(first);
    member.sync();
    loops.softmax(b, own);
    member.sync();
    for (const GlrReads<A>& part : scratch.reads) loops.solve(b, part, slots, from, to);
    y.store(first, first, last, from, to);
    member.sync();
  }
}

// Gradients into k or v: written at once if one query head reads them, else summed over the group.
template <typename T>
class SharedGradient {
 public:
  using A = Accumulator<T>;

  SharedGradient(HeadOf<T> out, const BlockPlan& plan, int64_t group)
      : out_(out), group_(group), rows_(out, plan.block) {
    if (!out || group == 1) return;
    block_ = PaddedRows<A>(plan.block, out.width);
    sum_ = PaddedRows<A>(plan.length, out.width);
  }

  explicit operator bool() const { return static_cast<bool>(out_); }

  /// Where the loops write rows of a block.
  RowsAt<A> rows(int64_t block) const { return group_ == 1 ? rows_.rows(block) : block_.view(); }

  /// Takes columns [from, to) of rows [begin, end), written for query head `member` of the group.
  void store(int64_t head, int64_t begin, int64_t end, int64_t from, int64_t to) const {
    if (!out_) return;
    if (group_ == 1) return rows_.store(begin, begin, end, from, to);
    for (int64_t i = begin; i < end; ++i) {
      A* sum = sum_[i];
      const A* add = block_[i - begin];
      for (int64_t c = from; c < to; ++c) sum[c] = head == 0 ? add[c] : sum[c] + add[c];
      if (head + 1 < group_) continue;
      for (int64_t c = from; c < std::min(to, out_.width); ++c) out_[i][c] = static_cast<T>(sum[c]);
    }
  }

 private:
  HeadOf<T> out_;
  int64_t group_;
  UnstagedRows<T> rows_;
  PaddedRows<A> block_, sum_;
};

// The backward of one key/value head, with all query heads that read it.
template <typename T>
class Backward {
 public:
  using A = Accumulator<T>;

  Backward(const GlrAttentionInputs<T>& in, const Sequence& s, int64_t kv_head, const T* y,
           const T* grad_y, const GlrAttentionGradients<T>& out, int64_t members)
      : in_(in),
        scratch_(in.rows, s.length, in.key_width, in.value_width, members),
        back_(scratch_.slots.count(), scratch_.key_width + scratch_.value_width),
        total_(scratch_.plan.block, in.value_width),
        scalars_(3, scratch_.plan.block),
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
  PaddedRows<A> back_;            // by slot: later and dk
  PaddedRows<A> total_, scalars_;  // by row of the block
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
  const GlrLoops<A> loops = glr_loops<A>();
  const GlrEnter<T> enter = glr_enter<T>();
  GlrReads<A>& own = scratch_.reads[member.rank()];
  Slots slots = scratch_.slots;
  GlrBlock<A> b = scratch_.block(in_.scale);
  b.later = back_.view();
  b.dk = {b.later.data + b.value_width, b.later.stride};
  b.total = total_.view();
  b.dgate = head.dgate ? scalars_[0] : nullptr;
  b.dd = head.dd ? scalars_[1] : nullptr;
  b.dd_self = head.dd_self ? scalars_[2] : nullptr;
  b.want_dq = static_cast<bool>(head.dq);
  b.want_dv = static_cast<bool>(dv_);
  b.want_logits = b.want_dq || dk_;
  const auto [from, to] = member.share(0, b.value_width, kPad);
  const auto [key_from, key_to] = member.share(0, b.key_width, kPad);

  const auto [length, block] = scratch_.plan;
  for (int64_t first = (length - 1) / block * block; first >= 0; first -= block) {
    const int64_t last = std::min(first + block, length);
    const auto [begin, end] = member.share(first, last);
    slots.backward(in_.rows, first, last);
    const auto [enter_from, enter_to] =
        member.share(0, static_cast<int64_t>(slots.entered().size()));
    enter(b,
          {slots.entered().data() + enter_from, 0, enter_to - enter_from, head.in.k,
           head.in.v.head(), head.in.d.head(), exact_y(head)},
          slots);
    head.in.load(first, begin, end);
    head.grad_y.load(first, begin, end);
    own.reads.assign(in_.rows, slots, b.k.stride, begin, end);
    own.p.resize(own.reads.size());
    own.u.resize(own.reads.size());
    head.in.view(first, b);
    b.grad_y = head.grad_y.rows(first);
    b.dq = head.dq.rows(first);
    b.dv = dv_.rows(first);
    member.sync();
    loops.softmax(b, own);
    member.sync();
    for (size_t part = scratch_.reads.size(); part-- > 0;) {
      loops.solve_transposed(b, scratch_.reads[part], slots, from, to);
    }
    dv_.store(h, first, last, from, to);
    member.sync();
    loops.row_gradients(b, own, slots);
    head.dq.store(first, begin, end, 0, b.key_width);
    for (const auto& [out, values] :
         {std::pair{head.dgate, b.dgate}, {head.dd, b.dd}, {head.dd_self, b.dd_self}}) {
      for (int64_t i = begin; values && i < end; ++i) *out[i] = static_cast<T>(values[i - first]);
    }
    member.sync();
    if (dk_) {
      for (size_t part = scratch_.reads.size(); part-- > 0;) {
        loops.key_gradients(b, scratch_.reads[part], key_from, key_to);
      }
      const RowsAt<A> dk = dk_.rows(first);
      for (int64_t i = first; i < last; ++i) {
        const A* sum = b.dk[slots.of(i)];
        std::copy(sum + key_from, sum + key_to, dk[i - first] + key_from);
      }
      dk_.store(h, first, last, key_from, key_to);
    }
    member.sync();
  }
}

}  // namespace

template <typename T>
void glr_attention(const GlrAttentionInputs<T>& in, T* y) {
  using A = Accumulator<T>;
  struct Task {
    Scratch<A> scratch;
    Head<T> head;
    UnstagedRows<T> y;
  };
  parallel_teams(
      in.sequences.count() * in.heads, entries(in), padded(in.value_width) / kPad,
      [&](int64_t task, int64_t members) {
        const Sequence& s = in.sequences.list[task / in.heads];
        const int64_t head = task % in.heads;
        Scratch<A> scratch(in.rows, s.length, in.key_width, in.value_width, members);
        const int64_t block = scratch.plan.block;
        return Task{std::move(scratch), Head<T>(in, s, head, block),
                    UnstagedRows<T>({y, in.sequences, s, in.heads, head, in.value_width}, block)};
      },
      [&](int64_t, Task& task, const Member& member) {
        forward(in, task.head, task.y, task.scratch, member);
      });
}

template <typename T>
void glr_attention_backward(const GlrAttentionInputs<T>& in, const T* y, const T* grad_y,
                            const GlrAttentionGradients<T>& out) {
  // A task owns a key/value head, so the sums into dk and dv have one order.
  parallel_teams(
      in.sequences.count() * in.kv_heads, entries(in), padded(in.value_width) / kPad,
      [&](int64_t task, int64_t members) {
        const Sequence& s = in.sequences.list[task / in.kv_heads];
        return Backward<T>(in, s, task % in.kv_heads, y, grad_y, out, members);
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
