#include "hopmix/kernels/glr_softmax.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "hopmix/kernels/glr_softmax_loops.h"
#include "hopmix/kernels/head_rows.h"
#include "hopmix/kernels/parallel.h"
#include "hopmix/kernels/row_blocks.h"
#include "hopmix/kernels/row_loops.h"
#include "hopmix/kernels/shared_gradient.h"

namespace hopmix::kernels {
namespace {

template <typename T>
int64_t entries(const GlrSoftmaxInputs<T>& in) {
  return in.sequences.tokens() * in.heads * in.value_width;
}

// The inputs of one query head.
template <typename T>
struct Head {
  HeadOf<const T> k, v, d;
  StagedRows<T> q;
  StagedScalars<T> d_self, g;

  Head(const GlrSoftmaxInputs<T>& in, const Sequence& s, int64_t head, int64_t block)
      : k(in.k, in.sequences, s, in.kv_heads, kv(in, head), in.key_width),
        v(in.v, in.sequences, s, in.kv_heads, kv(in, head), in.value_width),
        d(in.d, in.sequences, s, in.heads, head, 1),
        q({in.q, in.sequences, s, in.heads, head, in.key_width}, block),
        d_self({in.d_self, in.sequences, s, in.heads, head, 1}, block),
        g({in.g, in.sequences, s, in.heads, head, 1}, block) {}

  static int64_t kv(const GlrSoftmaxInputs<T>& in, int64_t head) {
    return head / (in.heads / in.kv_heads);
  }

  void load(int64_t block, int64_t begin, int64_t end) {
    q.load(block, begin, end);
    d_self.load(block, begin, end);
    g.load(block, begin, end);
  }
};

// What the members of a team share: the slots, and the reads of the block in work.
template <typename A>
struct Scratch {
  BlockPlan plan;
  Slots slots;
  int64_t key_width, value_width;  // padded
  PaddedRows<A> k, v, y;           // by slot, of one stride
  std::vector<A> d, g;             // by slot
  std::vector<A> self;             // by row of the block: weight of the token's own value
  std::vector<JointReads<A>> members;

  Scratch(const Rows& rows, int64_t length, int64_t keys, int64_t values, int64_t team)
      : plan(rows, length, team),
        slots(rows, length, plan.block),
        key_width(padded(keys)),
        value_width(padded(values)),
        k(by_slot()),
        v(by_slot()),
        y(by_slot()),
        d(slots.count()),
        g(slots.count()),
        self(plan.block),
        members(team) {}

  PaddedRows<A> by_slot() const { return {slots.count(), std::max(key_width, value_width)}; }
};

// The steps that both passes begin with.
template <typename T>
class Weights {
 public:
  using A = Accumulator<T>;

  Weights(const GlrSoftmaxInputs<T>& in, Head<T>& head, Scratch<A>& scratch)
      : in_(in), head_(head), scratch_(scratch) {}

  void enter(const Entering& tokens) const {
    enter_.copy(tokens, head_.k, scratch_.k.view());
    enter_.copy(tokens, head_.v, scratch_.v.view());
    const HeadOf<const T>& g = head_.g.head();
    for (int64_t n = 0; n < tokens.count; ++n) {
      const int64_t i = tokens.token(n), slot = tokens.slots->of(i);
      scratch_.d[slot] = static_cast<A>(*head_.d[i]);
      scratch_.g[slot] = static_cast<A>(*g[i]);
    }
  }

  // Everything of rows [begin, end) that a step needs before the others.
  void load(const Slots& slots, int64_t first, int64_t begin, int64_t end,
            JointReads<A>& own) const {
    head_.load(first, begin, end);
    own.reads.assign(in_.rows, slots, scratch_.k.view().stride, begin, end);
    for (PerRead<A>* part : {&own.direct, &own.recurrent}) part->resize(own.reads.size());
  }

  JointBlock<A> block(int64_t first) const {
    JointBlock<A> b{};
    b.first = first;
    b.d_self = head_.d_self.data();
    b.g = in_.gate_on_read ? scratch_.g.data() : head_.g.data();
    b.d = scratch_.d.data();
    b.gate_on_read = in_.gate_on_read;
    b.self = scratch_.self.data();
    b.v = scratch_.v.view();
    b.y = scratch_.y.view();
    b.scale = static_cast<A>(in_.scale);
    return b;
  }

  void weigh(const JointBlock<A>& b, const JointReads<A>& own) const {
    rows_.dots(own.reads, head_.q.rows(b.first), scratch_.k.view().data, scratch_.key_width,
               b.scale, own.direct);
    joint_.weigh(b, own);
  }

 private:
  const GlrSoftmaxInputs<T>& in_;
  Head<T>& head_;
  Scratch<A>& scratch_;
  RowLoops<A> rows_ = row_loops<A>();
  EnterLoops<T> enter_ = enter_loops<T>();
  JointLoops<A> joint_ = joint_loops<A>();
};

// The forward pass of one head, by all members of a team at once.
template <typename T, typename Out>
void forward(const GlrSoftmaxInputs<T>& in, Head<T>& head, const UnstagedRows<Out>& y,
             Scratch<Accumulator<T>>& scratch, const Member& member) {
  using A = Accumulator<T>;
  const Weights<T> weights(in, head, scratch);
  const auto joint = joint_loops<A>();
  const auto [from, to] = member.share(0, scratch.value_width, kPad);
  JointReads<A>& own = scratch.members[member.rank()];
  Slots slots = scratch.slots;
  const auto [length, block] = scratch.plan;
  for (int64_t first = 0; first < length; first += block) {
    const int64_t last = std::min(first + block, length);
    const auto [begin, end] = member.share(first, last);
    slots.forward(in.rows, first, last);
    weights.enter({nullptr, begin, end - begin, &slots});
    weights.load(slots, first, begin, end, own);
    member.sync();
    JointBlock<A> b = weights.block(first);
    weights.weigh(b, own);
    member.sync();
    b.out = y.rows(first);
    for (const JointReads<A>& part : scratch.members) joint.solve(b, part, slots, from, to);
    y.store(first, first, last, from, to);
    member.sync();
  }
}

// The backward of one key/value head, with all query heads that read it.
template <typename T>
class Backward {
 public:
  using A = Accumulator<T>;

  Backward(const GlrSoftmaxInputs<T>& in, const Sequence& s, int64_t kv_head, const T* y,
           const T* grad_y, const GlrSoftmaxGradients<T>& out, int64_t team)
      : in_(in),
        scratch_(in.rows, s.length, in.key_width, in.value_width, team),
        dk_by_slot_(scratch_.by_slot()),
        dv_by_slot_(scratch_.by_slot()),
        later_(scratch_.by_slot()),
        lambda_(scratch_.plan.block, in.value_width),
        scalars_(2, scratch_.plan.block),
        dd_by_slot_(scratch_.slots.count()),
        dg_by_slot_(scratch_.slots.count()),
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
                        at(out.d, 1), at(out.d_self, 1), at(out.g, 1)});
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
    HeadOf<T> dd, dd_self, dg;
  };

  void run(int64_t h, const Member& member);

  // Fills the slots of tokens that enter: nothing was sent back to them yet.
  void enter(const QueryHead& head, const Weights<T>& weights, const Entering& tokens) {
    weights.enter(tokens);
    HeadOf<const A> y;  // before it was rounded
    if constexpr (kRoundsOutput<T>) {
      y = {exact_y_.data(), in_.value_width};
    } else {
      y = head.y;
    }
    const EnterLoops<A> loops = enter_loops<A>();
    loops.copy(tokens, y, scratch_.y.view());
    loops.zero(tokens, scratch_.key_width, dk_by_slot_.view());
    loops.zero(tokens, scratch_.value_width, dv_by_slot_.view());
    loops.zero(tokens, scratch_.value_width, later_.view());
    for (int64_t n = 0; n < tokens.count; ++n) {
      const int64_t slot = tokens.slots->of(tokens.token(n));
      dd_by_slot_[slot] = dg_by_slot_[slot] = 0;
    }
  }

  // Gradients of the logits that belong to what is read: a number each, for one member alone.
  void logits_of_reads(const QueryHead& head, const Slots& slots, int64_t first, int64_t last) {
    for (size_t part = scratch_.members.size(); part-- > 0;) {
      const JointReads<A>& r = scratch_.members[part];
      for (int64_t i = r.reads.end() - 1; i >= r.reads.begin(); --i) {
        const int32_t* at = r.reads.slots(i);
        const A *x = r.direct_slope.at(r.reads, i), *y = r.slope.at(r.reads, i);
        for (int64_t n = 0; n < r.reads.count(i); ++n) {
          dd_by_slot_[at[n]] += x[n];
          dg_by_slot_[at[n]] += y[n];
        }
      }
    }
    for (int64_t i = first; i < last; ++i) {
      if (head.dd) *head.dd[i] = static_cast<T>(dd_by_slot_[slots.of(i)]);
      if (head.dg && in_.gate_on_read) *head.dg[i] = static_cast<T>(dg_by_slot_[slots.of(i)]);
    }
  }

  const GlrSoftmaxInputs<T>& in_;
  Scratch<A> scratch_;
  PaddedRows<A> dk_by_slot_, dv_by_slot_, later_;  // later: what readers send back to y
  PaddedRows<A> lambda_, scalars_;                 // by row of the block
  std::vector<A> dd_by_slot_, dg_by_slot_;
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
  const Weights<T> weights(in_, head.in, scratch_);
  const auto rows = row_loops<A>();
  const auto joint = joint_loops<A>();
  JointReads<A>& own = scratch_.members[member.rank()];
  Slots slots = scratch_.slots;
  const RowsAt<A> k = scratch_.k.view(), dk = dk_by_slot_.view(), dv = dv_by_slot_.view();
  const int64_t key_width = scratch_.key_width, value_width = scratch_.value_width;
  const auto [from, to] = member.share(0, value_width, kPad);
  const auto [key_from, key_to] = member.share(0, key_width, kPad);
  A *dd_self = scalars_[0], *dg = scalars_[1];

  const auto [length, block] = scratch_.plan;
  for (int64_t first = (length - 1) / block * block; first >= 0; first -= block) {
    const int64_t last = std::min(first + block, length);
    const auto [begin, end] = member.share(first, last);
    slots.backward(in_.rows, first, last);
    const auto [enter_from, enter_to] =
        member.share(0, static_cast<int64_t>(slots.entered().size()));
    in_pieces({slots.entered().data() + enter_from, 0, enter_to - enter_from, &slots},
              [&](const Entering& piece) { enter(head, weights, piece); });
    head.grad_y.load(first, begin, end);
    weights.load(slots, first, begin, end, own);
    own.direct_slope.resize(own.reads.size());
    own.slope.resize(own.reads.size());
    member.sync();

    JointBlock<A> b = weights.block(first);
    weights.weigh(b, own);
    member.sync();

    b.grad_y = head.grad_y.rows(first);
    b.later = later_.view();
    b.dv = dv;
    b.lambda = {lambda_.view(), first};
    b.dd_self = dd_self;
    b.dg = dg;
    for (size_t part = scratch_.members.size(); part-- > 0;) {
      joint.solve_transposed(b, scratch_.members[part], slots, from, to);
    }
    if (dv_) {
      dv_.take(dv, slots, first, last, from, to);
      dv_.store(h, first, last, from, to);
    }
    member.sync();

    if (head.dq || dk_ || head.dd || head.dd_self || head.dg) {
      const BlockRows<const A> lambda{{lambda_[0], lambda_.view().stride}, first};
      rows.dots(own.reads, lambda, b.v.data, value_width, A{1}, own.direct_slope);
      rows.dots(own.reads, lambda, b.y.data, value_width, A{1}, own.slope);
      joint.slopes(b, own, slots, value_width);
    }
    if (head.dq) {
      rows.gather(own.reads, own.direct, k.data, head.dq.rows(first), 0, key_width);
      head.dq.store(first, begin, end, 0, key_width);
    }
    for (int64_t i = begin; i < end; ++i) {
      if (head.dd_self) *head.dd_self[i] = static_cast<T>(dd_self[i - first]);
      if (head.dg && !in_.gate_on_read) *head.dg[i] = static_cast<T>(dg[i - first]);
    }
    member.sync();

    if (member.rank() == 0 && (head.dd || head.dg)) logits_of_reads(head, slots, first, last);
    if (dk_) {
      const BlockRows<const A> q = head.in.q.rows(first);
      for (size_t part = scratch_.members.size(); part-- > 0;) {
        const JointReads<A>& theirs = scratch_.members[part];
        rows.scatter(theirs.reads, theirs.direct, q, dk.data, key_from, key_to);
      }
      dk_.take(dk, slots, first, last, key_from, key_to);
      dk_.store(h, first, last, key_from, key_to);
    }
    member.sync();
  }
}

}  // namespace

template <typename T>
void glr_softmax(const GlrSoftmaxInputs<T>& in, T* y) {
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
        Scratch<Accumulator<T>> scratch(in.rows, s.length, in.key_width, in.value_width, team);
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
void glr_softmax_backward(const GlrSoftmaxInputs<T>& in, const T* y, const T* grad_y,
                          const GlrSoftmaxGradients<T>& out) {
  // A task owns a key/value head, so the sums into dk and dv have one order.
  parallel_teams(
      in.sequences.count() * in.kv_heads, entries(in), padded(in.value_width) / kPad,
      [&](int64_t task, int64_t team) {
        const Sequence& s = in.sequences.list[task / in.kv_heads];
        return Backward<T>(in, s, task % in.kv_heads, y, grad_y, out, team);
      },
      [&](int64_t, Backward<T>& task, const Member& member) { task.run(member); });
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
