#include "hopmix/kernels/sparse_attention.h"

#include <algorithm>
#include <vector>

#include "hopmix/kernels/head_rows.h"
#include "hopmix/kernels/parallel.h"
#include "hopmix/kernels/row_blocks.h"
#include "hopmix/kernels/row_loops.h"

namespace hopmix::kernels {
namespace {

template <typename T>
int64_t entries(const SparseAttentionInputs<T>& in) {
  return in.sequences.tokens() * in.heads * in.value_width;
}

// Writes columns [from, to) of rows [first, last) of a gradient that is complete.
template <typename T>
void write(const UnstagedRows<T>& out, const PaddedRows<Accumulator<T>>& by_slot,
           const Slots& slots, int64_t first, int64_t last, int64_t from, int64_t to) {
  if (!out) return;
  for (int64_t i = first; i < last; ++i) {
    const Accumulator<T>* sum = by_slot[slots.of(i)];
    std::copy(sum + from, sum + to, out.rows(first)[i] + from);
  }
  out.store(first, first, last, from, to);
}

// The reads of one member's rows, of each query head or alike for all, and numbers for each of
// them.
template <typename A>
struct MemberReads {
  std::vector<Reads> reads;
  std::vector<PerRead<A>> p, u, ds;  // of each query head
};

// Some query heads of one key/value head. Each step sweeps one array, and heads that read the same
// rows of it take turns, so that these are fetched once. Nothing is sequential here: a team shares
// a long sequence by its rows, and the backward by columns only where rows add into keys and
// values.
template <typename T>
class Heads {
 public:
  using A = Accumulator<T>;

  Heads(const SparseAttentionInputs<T>& in, const Sequence& s, int64_t kv_head, int64_t first_head,
        int64_t count, T* y, const T* grad_y, const SparseAttentionGradients<T>& out, int64_t team)
      : in_(in),
        alike_(in.rows.alike(first_head, count)),
        plan_(in.rows.of(s, first_head), s.length, team, count),
        slots_(in.rows.of(s, first_head), s.length, plan_.block),
        key_width_(padded(in.key_width)),
        value_width_(padded(in.value_width)),
        k_(by_slot(true)),
        v_(by_slot(true)),
        dk_by_slot_(by_slot(out.k != nullptr)),
        dv_by_slot_(by_slot(out.v != nullptr)),
        from_k_(in.k, in.sequences, s, in.kv_heads, kv_head, in.key_width),
        from_v_(in.v, in.sequences, s, in.kv_heads, kv_head, in.value_width),
        dk_({out.k, in.sequences, s, in.kv_heads, kv_head, in.key_width}, plan_.block),
        dv_({out.v, in.sequences, s, in.kv_heads, kv_head, in.value_width}, plan_.block),
        members_(team) {
    for (int64_t head = first_head; head < first_head + count; ++head) {
      const auto at = [&](auto* x, int64_t width) {
        return HeadOf(x, in.sequences, s, in.heads, head, width);
      };
      heads_.push_back({in.rows.of(s, head),
                        {at(in.q, in.key_width), plan_.block},
                        {at(grad_y, in.value_width), plan_.block},
                        {at(y, in.value_width), plan_.block},
                        {at(out.q, in.key_width), plan_.block}});
    }
    for (MemberReads<A>& member : members_) {
      member.reads.resize(alike_ ? 1 : count);
      member.p.resize(count);
      member.u.resize(count);
      member.ds.resize(count);
    }
  }

  void forward(const Member& member);
  void backward(const Member& member);

 private:
  struct QueryHead {
    Rows rows;
    StagedRows<T> q, grad_y;
    UnstagedRows<T> y, dq;
  };

  PaddedRows<A> by_slot(bool wanted) const {
    return {wanted ? slots_.count() : 0, std::max(key_width_, value_width_)};
  }

  void enter(const Entering& entering) const {
    enter_.copy(entering, from_k_, k_.view());
    enter_.copy(entering, from_v_, v_.view());
  }

  const Reads& reads(const MemberReads<A>& of, size_t h) const { return of.reads[alike_ ? 0 : h]; }

  // Rows that heads which read the same go through by turns: what these read stays near. No bit
  // depends on it.
  int64_t turn() const {
    constexpr int64_t kNear = 4;
    return alike_ && heads_.size() > 1 ? kNear : plan_.block;
  }
  // The same where heads add into one row: the order of these sums must not depend on the block.
  int64_t sum_turn() const { return heads_.size() > 1 ? 1 : plan_.block; }

  // Makes rows [begin, end) of a block ready: their queries, and what they read.
  void load(MemberReads<A>& own, const Slots& slots, int64_t first, int64_t begin,
            int64_t end) const {
    for (size_t h = 0; h < own.reads.size(); ++h) {
      own.reads[h].assign(heads_[h].rows, slots, k_.view().stride, begin, end, in_.include_self);
    }
    for (size_t h = 0; h < heads_.size(); ++h) {
      heads_[h].q.load(first, begin, end);
      own.p[h].resize(reads(own, h).size());
    }
  }

  // body(h, reads) for all rows of a member, a head after another every `turn` rows, last rows
  // first.
  template <typename Body>
  void each_head(const MemberReads<A>& of, int64_t turn, const Body& body) const {
    const int64_t first = of.reads[0].begin();
    for (int64_t end = of.reads[0].end(); end > first; end -= turn) {
      for (size_t h = 0; h < heads_.size(); ++h) {
        body(h, reads(of, h).part(std::max(first, end - turn), end));
      }
    }
  }

  void softmax(const MemberReads<A>& own, int64_t first) const {
    each_head(own, turn(), [&](size_t h, const ReadsView& reads) {
      rows_.dots(reads, heads_[h].q.rows(first), k_[0], key_width_, static_cast<A>(in_.scale),
                 own.p[h]);
    });
    for (size_t h = 0; h < heads_.size(); ++h) rows_.softmax(reads(own, h), own.p[h]);
  }

  void logit_gradients(const MemberReads<A>& own, int64_t first, const A* factor) const {
    each_head(own, turn(), [&](size_t h, const ReadsView& reads) {
      rows_.dots(reads, heads_[h].grad_y.rows(first), v_[0], value_width_, A{1}, own.u[h]);
    });
    for (size_t h = 0; h < heads_.size(); ++h) {
      std::copy_n(own.p[h].data(), reads(own, h).size(), own.ds[h].data());
      rows_.softmax_backward(reads(own, h), own.ds[h], own.u[h], nullptr, factor);
    }
  }

  const RowLoops<A> rows_ = row_loops<A>();
  const EnterLoops<T> enter_ = enter_loops<T>();
  const SparseAttentionInputs<T>& in_;
  bool alike_;
  BlockPlan plan_;
  Slots slots_;
  int64_t key_width_, value_width_;                // padded
  PaddedRows<A> k_, v_, dk_by_slot_, dv_by_slot_;  // of one stride
  HeadOf<const T> from_k_, from_v_;
  UnstagedRows<T> dk_, dv_;
  std::vector<QueryHead> heads_;
  std::vector<MemberReads<A>> members_;
};

template <typename T>
void Heads<T>::forward(const Member& member) {
  Slots slots = slots_;
  MemberReads<A>& own = members_[member.rank()];
  const auto [length, block] = plan_;
  for (int64_t first = 0; first < length; first += block) {
    const int64_t last = std::min(first + block, length);
    const auto [begin, end] = member.share(first, last);
    slots.forward(heads_[0].rows, first, last);
    enter({nullptr, begin, end - begin, &slots});
    load(own, slots, first, begin, end);
    member.sync();
    softmax(own, first);
    each_head(own, turn(), [&](size_t h, const ReadsView& reads) {
      rows_.gather(reads, own.p[h], v_[0], heads_[h].y.rows(first), 0, value_width_);
    });
    for (const QueryHead& head : heads_) head.y.store(first, begin, end, 0, value_width_);
    member.sync();
  }
  own = {};  // to the thread that took it
}

template <typename T>
void Heads<T>::backward(const Member& member) {
  Slots slots = slots_;
  MemberReads<A>& own = members_[member.rank()];
  const auto [key_from, key_to] = member.share(0, key_width_, kPad);
  const auto [from, to] = member.share(0, value_width_, kPad);
  const bool want_logits = dk_ || heads_[0].dq;
  const std::vector<A> factor(plan_.block, static_cast<A>(in_.scale));

  const auto [length, block] = plan_;
  for (int64_t first = (length - 1) / block * block; first >= 0; first -= block) {
    const int64_t last = std::min(first + block, length);
    const auto [begin, end] = member.share(first, last);
    slots.backward(heads_[0].rows, first, last);
    const auto [enter_from, enter_to] =
        member.share(0, static_cast<int64_t>(slots.entered().size()));
    const Entering entering{slots.entered().data() + enter_from, 0, enter_to - enter_from, &slots};
    enter(entering);
    if (dk_) enter_.zero(entering, key_width_, dk_by_slot_.view());
    if (dv_) enter_.zero(entering, value_width_, dv_by_slot_.view());
    load(own, slots, first, begin, end);
    for (size_t h = 0; h < heads_.size(); ++h) {
      heads_[h].grad_y.load(first, begin, end);
      if (!want_logits) continue;
      own.u[h].resize(reads(own, h).size());
      own.ds[h].resize(reads(own, h).size());
    }
    member.sync();

    softmax(own, first);
    if (want_logits) logit_gradients(own, first, factor.data());
    if (heads_[0].dq) {
      each_head(own, turn(), [&](size_t h, const ReadsView& reads) {
        rows_.gather(reads, own.ds[h], k_[0], heads_[h].dq.rows(first), 0, key_width_);
      });
    }
    for (const QueryHead& head : heads_) head.dq.store(first, begin, end, 0, key_width_);
    member.sync();

    for (size_t part = members_.size(); part-- > 0;) {
      const MemberReads<A>& theirs = members_[part];
      if (dk_) {
        each_head(theirs, sum_turn(), [&](size_t h, const ReadsView& reads) {
          rows_.scatter(reads, theirs.ds[h], heads_[h].q.rows(first), dk_by_slot_[0], key_from,
                        key_to);
        });
      }
      if (dv_) {
        each_head(theirs, sum_turn(), [&](size_t h, const ReadsView& reads) {
          rows_.scatter(reads, theirs.p[h], heads_[h].grad_y.rows(first), dv_by_slot_[0], from, to);
        });
      }
    }
    write(dk_, dk_by_slot_, slots, first, last, key_from, key_to);
    write(dv_, dv_by_slot_, slots, first, last, from, to);
    member.sync();
  }
  own = {};  // to the thread that took it
}

}  // namespace

template <typename T>
void sparse_attention(const SparseAttentionInputs<T>& in, T* y) {
  const int64_t group = in.heads / in.kv_heads;
  // Heads that read the same keys go together unless threads would be left without work.
  const int64_t all = in.sequences.count() * in.kv_heads;
  const int64_t together = all >= omp_get_max_threads() ? group : 1;
  parallel_teams(
      in.sequences.count() * in.heads / together, entries(in), kAnyTeam,
      [&](int64_t task, int64_t team) {
        const int64_t head = task * together % in.heads;
        const Sequence& s = in.sequences.list[task * together / in.heads];
        return Heads<T>(in, s, head / group, head, together, y, nullptr, {}, team);
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
