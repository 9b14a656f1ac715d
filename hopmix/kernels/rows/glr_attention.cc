#include "hopmix/kernels/rows/glr_attention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "hopmix/kernels/rows/entering.h"
#include "hopmix/kernels/rows/glr_attention_loops.h"
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
int64_t entries(const GlrAttentionInputs<T>& in) {
  return in.sequences.tokens() * in.heads * in.value_width;
}

// The rows of one query head in a block that is worked on.
template <typename T>
struct Head {
  Rows rows;
  StagedRows<T> q, v, grad_y;
  StagedScalars<T> gate, d, d_self;

  Head(const GlrAttentionInputs<T>& in, const Sequence& s, int64_t head, int64_t block,
       const T* gradient = nullptr)
      : rows(in.rows.of(s, head)),
        q({in.q, in.sequences, s, in.heads, head, in.key_width}, block),
        v({in.v, in.sequences, s, in.kv_heads, kv(in, head), in.value_width}, block),
        grad_y({gradient, in.sequences, s, in.heads, head, in.value_width}, block),
        gate({in.gate, in.sequences, s, in.heads, head, 1}, block),
        d({in.d, in.sequences, s, in.heads, head, 1}, block),
        d_self({in.d_self, in.sequences, s, in.heads, head, 1}, block) {}

  static int64_t kv(const GlrAttentionInputs<T>& in, int64_t head) {
    return head / (in.heads / in.kv_heads);
  }

  void load_values(int64_t block, int64_t begin, int64_t end) {
    v.load(block, begin, end);
    grad_y.load(block, begin, end);
    gate.load(block, begin, end);
    d.load(block, begin, end);
    d_self.load(block, begin, end);
  }
};

// One for each block that a team works on at once.
template <typename T>
using Heads = std::vector<Head<T>>;

// Reads of some rows of a block, and a number for each: its coefficient, later the gradient of its
// logit.
template <typename A>
struct PartReads {
  Reads reads;
  PerRead<A> p;
};

// What the members of a team share: the slots, and the reads of each block in work.
template <typename T>
struct Scratch {
  using A = Accumulator<T>;

  Crews crews;
  BlockPlan plan;
  Slots slots;
  int64_t key_width, value_width;  // padded
  SlotRows<T> k;                   // these two of one stride
  PaddedRows<A> z;                 // by slot
  PartsInWork<PartReads<A>> in_work;

  Scratch(const GlrAttentionInputs<T>& in, const Sequence& s, int64_t head, int64_t team)
      : crews(in.rows.of(s, head), team),
        plan(in.rows.of(s, head), s.length, team, /*heads=*/1, crews.apart),
        slots(in.rows.of(s, head), s.length, plan.block),
        key_width(padded(in.key_width)),
        value_width(padded(in.value_width)),
        k({in.k, in.sequences, s, in.kv_heads, Head<T>::kv(in, head), in.key_width}, slots,
          stride()),
        z(by_slot()),
        in_work(crews) {}

  int64_t stride() const { return std::max(key_width, value_width); }
  PaddedRows<A> by_slot() const { return {slots.count(), stride()}; }
  std::vector<PartReads<A>>& parts(int64_t block) { return in_work.of(block); }
};

template <typename T>
GlrAttentionBlock<Accumulator<T>> block_of(const Head<T>& head, int64_t first,
                                           const Scratch<T>& scratch) {
  GlrAttentionBlock<Accumulator<T>> b{};
  b.first = first;
  b.v = head.v.rows(first);
  b.gate = head.gate.data();
  b.d = head.d.data();
  b.d_self = head.d_self.data();
  b.z = scratch.z.view();
  return b;
}

template <typename T>
Heads<T> heads_in_work(const Scratch<T>& scratch, const GlrAttentionInputs<T>& in,
                       const Sequence& s, int64_t head, const T* grad_y = nullptr) {
  Heads<T> all;
  for (int64_t n = 0; n < scratch.crews.in_work; ++n) {
    all.emplace_back(in, s, head, scratch.plan.block, grad_y);
  }
  return all;
}

// The forward pass of one head, by all members of a team at once.
template <typename T, typename Out>
void forward(const GlrAttentionInputs<T>& in, Heads<T>& heads, const UnstagedRows<Out>& y,
             Scratch<T>& scratch, const Member& team) {
  using A = Accumulator<T>;
  const auto rows = row_loops<A>();
  const auto glr = glr_attention_loops<A>();
  const BlockPlan& plan = scratch.plan;
  Slots slots = scratch.slots;
  const auto head = [&](int64_t n) -> Head<T>& { return heads[n % scratch.crews.in_work]; };
  Pipeline(team, scratch.crews)
      .run(plan.count(), {{Crew::kKeys,
                           [&](int64_t n, const Member& crew) {
                             const auto [first, last] = plan.rows(n);
                             const auto [begin, end] = crew.share(first, last);
                             PartReads<A>& own = scratch.parts(n)[crew.rank()];
                             slots.forward(head(n).rows, first, last);
                             head(n).q.load(first, begin, end);
                             scratch.k.enter({nullptr, begin, end - begin, &slots});
                             own.reads.assign(head(n).rows, slots, scratch.stride(), begin, end);
                             own.p.resize(own.reads.size());
                           }},
                          {Crew::kKeys,
                           [&](int64_t n, const Member& crew) {
                             const PartReads<A>& own = scratch.parts(n)[crew.rank()];
                             rows.dots(own.reads, head(n).q.rows(plan.rows(n).first),
                                       scratch.k.data(), scratch.key_width,
                                       static_cast<A>(in.scale), own.p);
                           }},
                          {Crew::kStates,
                           [&](int64_t n, const Member& crew) {
                             const auto [first, last] = plan.rows(n);
                             const auto [begin, end] = crew.share(first, last);
                             head(n).load_values(first, begin, end);
                             for_own(scratch.parts(n), crew,
                                     [&](auto& part) { rows.softmax(part.reads, part.p); });
                           }},
                          {Crew::kStates, [&](int64_t n, const Member& crew) {
                             const auto [first, last] = plan.rows(n);
                             const auto [from, to] = crew.share(0, scratch.value_width, kPad);
                             GlrAttentionBlock<A> b = block_of(head(n), first, scratch);
                             b.y = y.rows(first);
                             for (const auto& part : scratch.parts(n)) {
                               glr.solve(b, part.reads, part.p, slots, from, to);
                             }
                             y.store(first, first, last, from, to);
                           }}});
}

// The backward of one key/value head, with all query heads that read it.
template <typename T>
class Backward {
 public:
  using A = Accumulator<T>;

  Backward(const GlrAttentionInputs<T>& in, const Sequence& s, int64_t kv_head, const T* y,
           const T* grad_y, const GlrAttentionGradients<T>& out, int64_t team)
      : in_(in),
        scratch_(in, s, kv_head * (in.heads / in.kv_heads), team),
        dk_by_slot_(scratch_.by_slot()),
        later_(scratch_.by_slot()),
        scalars_(4, scratch_.plan.block),
        slopes_(team),
        exact_y_(kRoundsOutput<T> ? s.length * in.value_width : 0),
        dk_({out.k, in.sequences, s, in.kv_heads, kv_head, in.key_width}, scratch_.plan,
            in.heads / in.kv_heads),
        dv_({out.v, in.sequences, s, in.kv_heads, kv_head, in.value_width}, scratch_.plan,
            in.heads / in.kv_heads) {
    const int64_t group = in.heads / in.kv_heads, block = scratch_.plan.block;
    for (int64_t n = 0; n < scratch_.crews.in_work; ++n) total_.emplace_back(block, in.value_width);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const auto at = [&](auto* x, int64_t width) {
        return HeadOf(x, in.sequences, s, in.heads, head, width);
      };
      heads_.push_back({heads_in_work(scratch_, in, s, head, grad_y),
                        UnstagedRows<T>(at(out.q, in.key_width), block), at(y, in.value_width),
                        at(out.gate, 1), at(out.d, 1), at(out.d_self, 1)});
    }
  }

  void run(const Member& team) {
    for (size_t h = 0; h < heads_.size(); ++h) run(static_cast<int64_t>(h), team);
    scratch_.in_work.give_back(team);
    slopes_[team.rank()] = {};
  }

 private:
  struct QueryHead {
    Heads<T> in;
    UnstagedRows<T> dq;
    HeadOf<const T> y;
    HeadOf<T> dgate, dd, dd_self;
  };

  void run(int64_t h, const Member& team);
  void slopes(const QueryHead& head, const GlrAttentionBlock<A>& b, const Slots& slots,
              const PartReads<A>& part, PerRead<A>& u) const;

  // y before it was rounded.
  HeadOf<const A> exact_y(const QueryHead& head) const {
    if constexpr (kRoundsOutput<T>) {
      return {exact_y_.data(), in_.value_width};
    } else {
      return head.y;
    }
  }

  const GlrAttentionInputs<T>& in_;
  Scratch<T> scratch_;
  PaddedRows<A> dk_by_slot_, later_;  // later: what the readers of a token send back to z
  std::vector<PaddedRows<A>> total_;  // by block in work, by row
  PaddedRows<A> scalars_;             // by row of the block
  std::vector<PerRead<A>> slopes_;    // by member: dLoss/dz_i . z_j
  Buffer<A> exact_y_;
  SharedGradient<T> dk_, dv_;
  std::vector<QueryHead> heads_;
};

template <typename T>
void Backward<T>::run(int64_t h, const Member& team) {
  QueryHead& head = heads_[h];
  if constexpr (kRoundsOutput<T>) {
    const UnstagedRows<A> y({exact_y_.data(), in_.value_width}, scratch_.plan.block);
    forward(in_, head.in, y, scratch_, team);
  }
  const auto rows = row_loops<A>();
  const auto enter = enter_loops<T>();
  const auto enter_y = enter_loops<A>();
  const auto glr = glr_attention_loops<A>();
  Slots slots = scratch_.slots;
  const RowsAt<A> z = scratch_.z.view(), dk = dk_by_slot_.view(), later = later_.view();
  const int64_t key_width = scratch_.key_width, value_width = scratch_.value_width;
  const BlockPlan& plan = scratch_.plan;
  const int64_t count = plan.count();
  const auto span = [&](int64_t n) { return plan.rows(count - 1 - n); };  // last first
  const auto in = [&](int64_t n) -> Head<T>& { return head.in[n % scratch_.crews.in_work]; };
  BackwardEntering entering(in(0).rows, plan, slots);
  const auto block = [&](int64_t n) {
    const int64_t first = span(n).first;
    const PaddedRows<A>& total = total_[n % scratch_.crews.in_work];
    GlrAttentionBlock<A> b = block_of(in(n), first, scratch_);
    b.grad_y = in(n).grad_y.rows(first);
    b.later = later;
    b.total = {total.view(), first};
    b.want_dv = static_cast<bool>(dv_);
    b.dv = dv_.rows(first);
    b.dd = head.dd ? scalars_[1] : nullptr;
    b.dd_self = head.dd_self ? scalars_[2] : nullptr;
    return b;
  };

  Pipeline(team, scratch_.crews)
      .run(count, {{Crew::kStates,
                    [&](int64_t n, const Member& crew) {
                      in_pieces(entering(n, crew), [&](const Entering& piece) {
                        enter_y.copy(piece, exact_y(head), z);
                        enter.add(piece, in(n).d.head(), in(n).v.head(), z);  // z = y + d v
                        enter.zero(piece, value_width, later);
                      });
                      const auto [first, last] = span(n);
                      const auto [begin, end] = crew.share(first, last);
                      in(n).load_values(first, begin, end);
                    }},
                   {Crew::kKeys,
                    [&](int64_t n, const Member& crew) {
                      in_pieces(entering(n, crew), [&](const Entering& piece) {
                        scratch_.k.enter(piece);
                        enter.zero(piece, key_width, dk);
                      });
                      const auto [first, last] = span(n);
                      const auto [begin, end] = crew.share(first, last);
                      PartReads<A>& own = scratch_.parts(n)[crew.rank()];
                      in(n).q.load(first, begin, end);
                      own.reads.assign(in(n).rows, slots, scratch_.stride(), begin, end);
                      own.p.resize(own.reads.size());
                    },
                    /*alongside=*/true},
                   {Crew::kKeys,
                    [&](int64_t n, const Member& crew) {
                      const PartReads<A>& own = scratch_.parts(n)[crew.rank()];
                      rows.dots(own.reads, in(n).q.rows(span(n).first), scratch_.k.data(),
                                key_width, static_cast<A>(in_.scale), own.p);
                    }},
                   {Crew::kStates,
                    [&](int64_t n, const Member& crew) {
                      for_own(scratch_.parts(n), crew,
                              [&](auto& part) { rows.softmax(part.reads, part.p); });
                    }},
                   {Crew::kStates,
                    [&](int64_t n, const Member& crew) {
                      const auto [first, last] = span(n);
                      const auto [from, to] = crew.share(0, value_width, kPad);
                      const GlrAttentionBlock<A> b = block(n);
                      for (size_t part = scratch_.crews.keys; part-- > 0;) {
                        const PartReads<A>& theirs = scratch_.parts(n)[part];
                        glr.solve_transposed(b, theirs.reads, theirs.p, slots, from, to);
                      }
                      dv_.store(h, first, last, from, to);
                    }},
                   {Crew::kStates,
                    [&](int64_t n, const Member& crew) {
                      for_own(scratch_.parts(n), crew, [&](auto& part) {
                        slopes(head, block(n), slots, part, slopes_[team.rank()]);
                      });
                    }},
                   {Crew::kKeys, [&](int64_t n, const Member& crew) {
                      const auto [first, last] = span(n);
                      const auto [from, to] = crew.share(0, key_width, kPad);
                      const auto& parts = scratch_.parts(n);
                      if (head.dq) {
                        const PartReads<A>& own = parts[crew.rank()];
                        rows.gather(own.reads, own.p, scratch_.k.data(), head.dq.rows(first), 0,
                                    key_width);
                        head.dq.store(first, own.reads.begin(), own.reads.end(), 0, key_width);
                      }
                      if (!dk_) return;
                      for (size_t part = parts.size(); part-- > 0;) {
                        rows.scatter(parts[part].reads, parts[part].p, in(n).q.rows(first), dk.data,
                                     from, to);
                      }
                      dk_.take(dk, slots, first, last, from, to);
                      dk_.store(h, first, last, from, to);
                    }}});
}

// Gradients of the gates and logits of some rows, whose dLoss/dz is complete.
template <typename T>
void Backward<T>::slopes(const QueryHead& head, const GlrAttentionBlock<A>& b, const Slots& slots,
                         const PartReads<A>& part, PerRead<A>& u) const {
  const auto rows = row_loops<A>();
  const bool want_logits = head.dq || dk_;
  const int64_t first = b.first, begin = part.reads.begin(), end = part.reads.end();
  A *dgate = scalars_[0], *factor = scalars_[3];
  glr_attention_loops<A>().gate_gradients(b, slots, begin, end, scratch_.value_width);
  if (head.dgate || want_logits) {
    u.resize(part.reads.size());
    rows.dots(part.reads, {{b.total.rows.data, b.total.rows.stride}, first}, b.z.data,
              scratch_.value_width, A{1}, u);
    for (int64_t i = begin; i < end; ++i) {
      factor[i - first] = static_cast<A>(in_.scale) * b.gate[i - first];
    }
    rows.softmax_backward(part.reads, part.p, u, dgate + (begin - first),
                          want_logits ? factor + (begin - first) : nullptr);
  }
  for (const auto& [out, values] :
       {std::pair{head.dgate, dgate}, {head.dd, b.dd}, {head.dd_self, b.dd_self}}) {
    for (int64_t i = begin; out && i < end; ++i) *out[i] = static_cast<T>(values[i - first]);
  }
}

}  // namespace

template <typename T>
void glr_attention(const GlrAttentionInputs<T>& in, T* y) {
  struct Task {
    Scratch<T> scratch;
    Heads<T> heads;
    UnstagedRows<T> y;
  };
  parallel_teams(
      in.sequences.count() * in.heads, entries(in), padded(in.value_width) / kPad,
      [&](int64_t task, int64_t team) {
        const Sequence& s = in.sequences.list[task / in.heads];
        const int64_t head = task % in.heads;
        Scratch<T> scratch(in, s, head, team);
        const int64_t block = scratch.plan.block;
        Heads<T> heads = heads_in_work(scratch, in, s, head);
        return Task{std::move(scratch), std::move(heads),
                    UnstagedRows<T>({y, in.sequences, s, in.heads, head, in.value_width}, block)};
      },
      [&](int64_t, Task& task, const Member& member) {
        forward(in, task.heads, task.y, task.scratch, member);
        task.scratch.in_work.give_back(member);
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
