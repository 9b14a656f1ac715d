#include "hopmix/kernels/rows/glr_softmax.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "hopmix/kernels/rows/entering.h"
#include "hopmix/kernels/rows/glr_softmax_loops.h"
#include "hopmix/kernels/rows/head_rows.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/rows/pipeline.h"
#include "hopmix/kernels/rows/row_blocks.h"
#include "hopmix/kernels/rows/row_loops.h"
#include "hopmix/kernels/rows/shared_gradient.h"
#include "hopmix/kernels/rows/slot_rows.h"

namespace hopmix::kernels {
namespace {

template <typename T>
int64_t entries(const GlrSoftmaxInputs<T>& in) {
  return in.sequences.tokens() * in.heads * in.value_width;
}

// The inputs of one query head; rows of a block that is worked on.
template <typename T>
struct Head {
  HeadOf<const T> d;
  StagedRows<T> q, grad_y;
  StagedScalars<T> d_self, g;

  Head(const GlrSoftmaxInputs<T>& in, const Sequence& s, int64_t head, int64_t block,
       const T* gradient = nullptr)
      : d(in.d, in.sequences, s, in.heads, head, 1),
        q({in.q, in.sequences, s, in.heads, head, in.key_width}, block),
        grad_y({gradient, in.sequences, s, in.heads, head, in.value_width}, block),
        d_self({in.d_self, in.sequences, s, in.heads, head, 1}, block),
        g({in.g, in.sequences, s, in.heads, head, 1}, block) {}

  void load(int64_t block, int64_t begin, int64_t end) {
    q.load(block, begin, end);
    d_self.load(block, begin, end);
    g.load(block, begin, end);
  }
};

// One for each block that a team works on at once.
template <typename T>
using Heads = std::vector<Head<T>>;

// What the members of a team share: the slots, and the reads of each block in work.
template <typename T>
struct Scratch {
  using A = Accumulator<T>;

  Crews crews;
  BlockPlan plan;
  Slots slots;
  int64_t key_width, value_width;    // padded
  SlotRows<T> k, v;                  // by slot, of one stride, as all that is by slot
  std::vector<A> d, g;               // by slot
  std::vector<std::vector<A>> self;  // by block in work, by row: weight of the token's own value
  PartsInWork<JointReads<A>> in_work;

  Scratch(const GlrSoftmaxInputs<T>& in, const Sequence& s, int64_t kv_head, int64_t team)
      : crews(in.rows, team),
        plan(in.rows, s.length, team, /*heads=*/1, crews.apart),
        slots(in.rows, s.length, plan.block),
        key_width(padded(in.key_width)),
        value_width(padded(in.value_width)),
        k({in.k, in.sequences, s, in.kv_heads, kv_head, in.key_width}, slots, stride()),
        v({in.v, in.sequences, s, in.kv_heads, kv_head, in.value_width}, slots, stride()),
        d(slots.count()),
        g(slots.count()),
        self(crews.in_work, std::vector<A>(plan.block)),
        in_work(crews) {}

  int64_t stride() const { return std::max(key_width, value_width); }
  PaddedRows<A> by_slot() const { return {slots.count(), stride()}; }

  Heads<T> heads_in_work(const GlrSoftmaxInputs<T>& in, const Sequence& s, int64_t head,
                         const T* grad_y = nullptr) const {
    Heads<T> all;
    for (int64_t n = 0; n < crews.in_work; ++n) all.emplace_back(in, s, head, plan.block, grad_y);
    return all;
  }
};

// The steps that both passes begin with.
template <typename T>
class Weights {
 public:
  using A = Accumulator<T>;

  Weights(const GlrSoftmaxInputs<T>& in, Heads<T>& heads, Scratch<T>& scratch)
      : in_(in), heads_(heads), scratch_(scratch) {}

  Head<T>& head(int64_t n) const { return heads_[n % scratch_.crews.in_work]; }

  // What the logits need of tokens.
  void enter(const Entering& tokens) const {
    scratch_.k.enter(tokens);
    const HeadOf<const T>&d = heads_[0].d, &g = heads_[0].g.head();
    for (int64_t n = 0; n < tokens.count; ++n) {
      const int64_t i = tokens.token(n), slot = tokens.slots->of(i);
      scratch_.d[slot] = static_cast<A>(*d[i]);
      scratch_.g[slot] = static_cast<A>(*g[i]);
    }
  }

  // Everything of rows [begin, end) of block n that a step needs before the others.
  void load(const Slots& slots, int64_t n, int64_t first, int64_t begin, int64_t end,
            JointReads<A>& own) const {
    head(n).load(first, begin, end);
    own.reads.assign(in_.rows, slots, scratch_.stride(), begin, end);
    for (PerRead<A>* part : {&own.direct, &own.recurrent}) part->resize(own.reads.size());
  }

  JointBlock<A> block(int64_t n, int64_t first) const {
    JointBlock<A> b{};
    b.first = first;
    b.d_self = head(n).d_self.data();
    b.g = in_.gate_on_read ? scratch_.g.data() : head(n).g.data();
    b.d = scratch_.d.data();
    b.gate_on_read = in_.gate_on_read;
    b.self = scratch_.self[n % scratch_.crews.in_work].data();
    b.v = scratch_.v.view();
    b.scale = static_cast<A>(in_.scale);
    return b;
  }

  void weigh(const JointBlock<A>& b, int64_t n, const JointReads<A>& own) const {
    rows_.dots(own.reads, head(n).q.rows(b.first), scratch_.k.data(), scratch_.key_width, b.scale,
               own.direct);
    joint_.weigh(b, own);
  }

 private:
  const GlrSoftmaxInputs<T>& in_;
  Heads<T>& heads_;
  Scratch<T>& scratch_;
  RowLoops<A> rows_ = row_loops<A>();
  JointLoops<A> joint_ = joint_loops<A>();
};

// The forward pass of one head, by all members of a team at once. The crew of the keys makes the
// weights, which takes as long as the sums over v and y.
template <typename T, typename Out>
void forward(const GlrSoftmaxInputs<T>& in, Heads<T>& heads, const UnstagedRows<Out>& y,
             const PaddedRows<Accumulator<T>>& y_by_slot, Scratch<T>& scratch, const Member& team) {
  using A = Accumulator<T>;
  const Weights<T> weights(in, heads, scratch);
  const auto joint = joint_loops<A>();
  Slots slots = scratch.slots;
  const BlockPlan& plan = scratch.plan;
  int64_t entered = -1;
  const auto entering = [&](int64_t n, const Member& crew) {
    const auto [first, last] = plan.rows(n);
    if (n != entered) slots.forward(in.rows, first, last);
    entered = n;
    const auto [begin, end] = crew.share(first, last);
    return Entering{nullptr, begin, end - begin, &slots};
  };
  Pipeline(team, scratch.crews)
      .run(plan.count(),
           {{Crew::kStates,
             [&](int64_t n, const Member& crew) { scratch.v.enter(entering(n, crew)); }},
            {Crew::kKeys,
             [&](int64_t n, const Member& crew) {
               const Entering tokens = entering(n, crew);
               weights.enter(tokens);
               weights.load(slots, n, plan.rows(n).first, tokens.first, tokens.first + tokens.count,
                            scratch.in_work.of(n)[crew.rank()]);
             },
             /*alongside=*/true},
            {Crew::kKeys,
             [&](int64_t n, const Member& crew) {
               weights.weigh(weights.block(n, plan.rows(n).first), n,
                             scratch.in_work.of(n)[crew.rank()]);
             }},
            {Crew::kStates, [&](int64_t n, const Member& crew) {
               const auto [first, last] = plan.rows(n);
               const auto [from, to] = crew.share(0, scratch.value_width, kPad);
               JointBlock<A> b = weights.block(n, first);
               b.y = y_by_slot.view();
               b.out = y.rows(first);
               for (const JointReads<A>& part : scratch.in_work.of(n)) {
                 joint.solve(b, part, slots, from, to);
               }
               y.store(first, first, last, from, to);
             }}});
}

// The backward of one key/value head, with all query heads that read it.
template <typename T>
class Backward {
 public:
  using A = Accumulator<T>;

  Backward(const GlrSoftmaxInputs<T>& in, const Sequence& s, int64_t kv_head, const T* y,
           const T* grad_y, const GlrSoftmaxGradients<T>& out, int64_t team)
      : in_(in),
        scratch_(in, s, kv_head, team),
        dk_by_slot_(scratch_.by_slot()),
        dv_by_slot_(scratch_.by_slot()),
        later_(scratch_.by_slot()),
        scalars_(2, scratch_.plan.block),
        dd_by_slot_(scratch_.slots.count()),
        dg_by_slot_(scratch_.slots.count()),
        dk_({out.k, in.sequences, s, in.kv_heads, kv_head, in.key_width}, scratch_.plan,
            in.heads / in.kv_heads),
        dv_({out.v, in.sequences, s, in.kv_heads, kv_head, in.value_width}, scratch_.plan,
            in.heads / in.kv_heads) {
    const int64_t group = in.heads / in.kv_heads, block = scratch_.plan.block;
    if constexpr (kRoundsOutput<T>) {
      exact_y_ = Buffer<A>(s.length * in.value_width);
      y_by_slot_ = scratch_.by_slot();
    }
    for (int64_t n = 0; n < scratch_.crews.in_work; ++n) {
      lambda_.emplace_back(block, in.value_width);
    }
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const auto at = [&](auto* x, int64_t width) {
        return HeadOf(x, in.sequences, s, in.heads, head, width);
      };
      heads_.push_back(
          {scratch_.heads_in_work(in, s, head, grad_y),
           UnstagedRows<T>(at(out.q, in.key_width), block),
           SlotRows<A>(exact_y(at(y, in.value_width)), scratch_.slots, scratch_.stride()),
           at(out.d, 1), at(out.d_self, 1), at(out.g, 1)});
    }
  }

  void run(const Member& team) {
    for (size_t h = 0; h < heads_.size(); ++h) run(static_cast<int64_t>(h), team);
    scratch_.in_work.give_back(team);
  }

 private:
  struct QueryHead {
    Heads<T> in;
    UnstagedRows<T> dq;
    SlotRows<A> y;
    HeadOf<T> dd, dd_self, dg;
  };

  void run(int64_t h, const Member& team);

  // y before it was rounded.
  HeadOf<const A> exact_y(const HeadOf<const T>& y) const {
    if constexpr (kRoundsOutput<T>) {
      return {exact_y_.data(), in_.value_width};
    } else {
      return y;
    }
  }

  bool wants_logits(const QueryHead& head) const {
    return head.dq || dk_ || head.dd || head.dd_self || head.dg;
  }

  // Gradients of the logits of a part, whose lambda and slopes of y_j are complete; `direct`
  // becomes those of the scores.
  void slopes(const QueryHead& head, const JointBlock<A>& b, const Slots& slots,
              const JointReads<A>& own) const {
    if (!wants_logits(head)) return;
    row_loops<A>().dots(own.reads, lambda(b), b.v.data, scratch_.value_width, A{1},
                        own.direct_slope);
    joint_loops<A>().slopes(b, own, slots, scratch_.value_width);
    for (int64_t i = own.reads.begin(); i < own.reads.end(); ++i) {
      if (head.dd_self) *head.dd_self[i] = static_cast<T>(b.dd_self[i - b.first]);
      if (head.dg && !in_.gate_on_read) *head.dg[i] = static_cast<T>(b.dg[i - b.first]);
    }
  }

  static BlockRows<const A> lambda(const JointBlock<A>& b) {
    return {{b.lambda.rows.data, b.lambda.rows.stride}, b.first};
  }

  // Gradients of the logits that belong to what is read: a number each, for one member alone.
  void logits_of_reads(const QueryHead& head, const Slots& slots, int64_t n, int64_t first,
                       int64_t last) {
    const auto& parts = scratch_.in_work.of(n);
    for (size_t part = parts.size(); part-- > 0;) {
      const JointReads<A>& r = parts[part];
      for (int64_t i = r.reads.end() - 1; i >= r.reads.begin(); --i) {
        const int32_t* at = r.reads.slots(i);
        const A *x = r.direct_slope.at(r.reads, i), *y = r.slope.at(r.reads, i);
        for (int64_t m = 0; m < r.reads.count(i); ++m) {
          dd_by_slot_[at[m]] += x[m];
          dg_by_slot_[at[m]] += y[m];
        }
      }
    }
    for (int64_t i = first; i < last; ++i) {
      if (head.dd) *head.dd[i] = static_cast<T>(dd_by_slot_[slots.of(i)]);
      if (head.dg && in_.gate_on_read) *head.dg[i] = static_cast<T>(dg_by_slot_[slots.of(i)]);
    }
  }

  const GlrSoftmaxInputs<T>& in_;
  Scratch<T> scratch_;
  PaddedRows<A> dk_by_slot_, dv_by_slot_, later_;  // later: what readers send back to y
  std::vector<PaddedRows<A>> lambda_;              // by block in work, by row
  PaddedRows<A> scalars_;                          // by row of the block
  std::vector<A> dd_by_slot_, dg_by_slot_;
  Buffer<A> exact_y_;
  PaddedRows<A> y_by_slot_;  // while exact_y_ is made
  SharedGradient<T> dk_, dv_;
  std::vector<QueryHead> heads_;
};

template <typename T>
void Backward<T>::run(int64_t h, const Member& team) {
  QueryHead& head = heads_[h];
  if constexpr (kRoundsOutput<T>) {
    const UnstagedRows<A> y({exact_y_.data(), in_.value_width}, scratch_.plan.block);
    forward(in_, head.in, y, y_by_slot_, scratch_, team);
  }
  const Weights<T> weights(in_, head.in, scratch_);
  const auto rows = row_loops<A>();
  const auto enter = enter_loops<A>();
  const auto joint = joint_loops<A>();
  Slots slots = scratch_.slots;
  const RowsAt<A> dk = dk_by_slot_.view(), dv = dv_by_slot_.view(), later = later_.view();
  const int64_t key_width = scratch_.key_width, value_width = scratch_.value_width;
  const BlockPlan& plan = scratch_.plan;
  const int64_t count = plan.count();
  const auto span = [&](int64_t n) { return plan.rows(count - 1 - n); };  // last first
  BackwardEntering entering(in_.rows, plan, slots);
  const auto block = [&](int64_t n) {
    JointBlock<A> b = weights.block(n, span(n).first);
    b.grad_y = weights.head(n).grad_y.rows(b.first);
    b.later = later;
    b.dv = dv;
    b.lambda = {lambda_[n % scratch_.crews.in_work].view(), b.first};
    b.dd_self = scalars_[0];
    b.dg = scalars_[1];
    return b;
  };
  // The crew of the keys also has v; dv goes with the states, as both are made of lambda.
  Pipeline(team, scratch_.crews)
      .run(count, {{Crew::kStates,
                    [&](int64_t n, const Member& crew) {
                      in_pieces(entering(n, crew), [&](const Entering& piece) {
                        head.y.enter(piece);
                        enter.zero(piece, value_width, dv);
                        enter.zero(piece, value_width, later);
                      });
                      const auto [first, last] = span(n);
                      const auto [begin, end] = crew.share(first, last);
                      weights.head(n).grad_y.load(first, begin, end);
                    }},
                   {Crew::kKeys,
                    [&](int64_t n, const Member& crew) {
                      in_pieces(entering(n, crew), [&](const Entering& piece) {
                        weights.enter(piece);
                        scratch_.v.enter(piece);
                        enter.zero(piece, key_width, dk);
                        for (int64_t t = 0; t < piece.count; ++t) {
                          const int64_t slot = slots.of(piece.token(t));
                          dd_by_slot_[slot] = dg_by_slot_[slot] = 0;
                        }
                      });
                      const auto [first, last] = span(n);
                      const auto [begin, end] = crew.share(first, last);
                      JointReads<A>& own = scratch_.in_work.of(n)[crew.rank()];
                      weights.load(slots, n, first, begin, end, own);
                      own.direct_slope.resize(own.reads.size());
                      own.slope.resize(own.reads.size());
                    },
                    /*alongside=*/true},
                   {Crew::kKeys,
                    [&](int64_t n, const Member& crew) {
                      weights.weigh(block(n), n, scratch_.in_work.of(n)[crew.rank()]);
                    }},
                   {Crew::kStates,
                    [&](int64_t n, const Member& crew) {
                      const auto [first, last] = span(n);
                      const auto [from, to] = crew.share(0, value_width, kPad);
                      const auto& parts = scratch_.in_work.of(n);
                      for (size_t part = parts.size(); part-- > 0;) {
                        joint.solve_transposed(block(n), parts[part], slots, from, to);
                      }
                      if (!dv_) return;
                      dv_.take(dv, slots, first, last, from, to);
                      dv_.store(h, first, last, from, to);
                    }},
                   {Crew::kStates,
                    [&](int64_t n, const Member& crew) {
                      if (!wants_logits(head)) return;
                      for_own(scratch_.in_work.of(n), crew, [&](const JointReads<A>& part) {
                        rows.dots(part.reads, lambda(block(n)), head.y.data(), value_width, A{1},
                                  part.slope);
                      });
                    }},
                   {Crew::kKeys,
                    [&](int64_t n, const Member& crew) {
                      const JointReads<A>& own = scratch_.in_work.of(n)[crew.rank()];
                      const int64_t first = span(n).first;
                      slopes(head, block(n), slots, own);
                      if (!head.dq) return;
                      rows.gather(own.reads, own.direct, scratch_.k.data(), head.dq.rows(first), 0,
                                  key_width);
                      head.dq.store(first, own.reads.begin(), own.reads.end(), 0, key_width);
                    }},
                   {Crew::kKeys, [&](int64_t n, const Member& crew) {
                      const auto [first, last] = span(n);
                      const auto [from, to] = crew.share(0, key_width, kPad);
                      if (crew.rank() == 0 && (head.dd || head.dg)) {
                        logits_of_reads(head, slots, n, first, last);
                      }
                      if (!dk_) return;
                      const auto& parts = scratch_.in_work.of(n);
                      for (size_t part = parts.size(); part-- > 0;) {
                        rows.scatter(parts[part].reads, parts[part].direct,
                                     weights.head(n).q.rows(first), dk.data, from, to);
                      }
                      dk_.take(dk, slots, first, last, from, to);
                      dk_.store(h, first, last, from, to);
                    }}});
}

}  // namespace

template <typename T>
void glr_softmax(const GlrSoftmaxInputs<T>& in, T* y) {
  struct Task {
    Scratch<T> scratch;
    Heads<T> heads;
    UnstagedRows<T> y;
    PaddedRows<Accumulator<T>> y_by_slot;
  };
  parallel_teams(
      in.sequences.count() * in.heads, entries(in), padded(in.value_width) / kPad,
      [&](int64_t task, int64_t team) {
        const Sequence& s = in.sequences.list[task / in.heads];
        const int64_t head = task % in.heads;
        Scratch<T> scratch(in, s, head / (in.heads / in.kv_heads), team);
        UnstagedRows<T> out({y, in.sequences, s, in.heads, head, in.value_width},
                            scratch.plan.block);
        Heads<T> heads = scratch.heads_in_work(in, s, head);
        PaddedRows<Accumulator<T>> y_by_slot = scratch.by_slot();
        return Task{std::move(scratch), std::move(heads), std::move(out), std::move(y_by_slot)};
      },
      [&](int64_t, Task& task, const Member& team) {
        forward(in, task.heads, task.y, task.y_by_slot, task.scratch, team);
        task.scratch.in_work.give_back(team);
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
