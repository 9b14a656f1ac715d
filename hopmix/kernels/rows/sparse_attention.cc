#include "hopmix/kernels/rows/sparse_attention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "hopmix/kernels/rows/entering.h"
#include "hopmix/kernels/rows/head_rows.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/rows/pipeline.h"
#include "hopmix/kernels/rows/row_blocks.h"
#include "hopmix/kernels/rows/row_loops.h"
#include "hopmix/kernels/rows/slot_rows.h"

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

// The reads of some rows of a block, of each query head or alike for all, and a number for each of
// them: its weight, later the gradient of its logit.
template <typename A>
struct PartReads {
  std::vector<Reads> reads;
  std::vector<PerRead<A>> p;  // of each query head
};

// Some query heads of one key/value head. Each step sweeps one array, and heads that read the same
// rows of it take turns, so that these are fetched once.
template <typename T>
class Heads {
 public:
  using A = Accumulator<T>;

  Heads(const SparseAttentionInputs<T>& in, const Sequence& s, int64_t kv_head, int64_t first_head,
        int64_t count, T* y, const T* grad_y, const SparseAttentionGradients<T>& out, int64_t team)
      : in_(in),
        alike_(in.rows.alike(first_head, count)),
        crews_(in.rows.of(s, first_head), team),
        plan_(in.rows.of(s, first_head), s.length, team, count, crews_.apart),
        slots_(in.rows.of(s, first_head), s.length, plan_.block),
        key_width_(padded(in.key_width)),
        value_width_(padded(in.value_width)),
        k_({in.k, in.sequences, s, in.kv_heads, kv_head, in.key_width}, slots_, stride()),
        v_({in.v, in.sequences, s, in.kv_heads, kv_head, in.value_width}, slots_, stride()),
        dk_by_slot_(by_slot(out.k != nullptr)),
        dv_by_slot_(by_slot(out.v != nullptr)),
        dk_({out.k, in.sequences, s, in.kv_heads, kv_head, in.key_width}, plan_.block),
        dv_({out.v, in.sequences, s, in.kv_heads, kv_head, in.value_width}, plan_.block),
        staged_(std::max(crews_.in_work, team)),
        in_work_(crews_),
        own_(team),
        slopes_(team) {
    for (int64_t head = first_head; head < first_head + count; ++head) {
      const auto at = [&](auto* x, int64_t width) {
        return HeadOf(x, in.sequences, s, in.heads, head, width);
      };
      QueryHead all{in.rows.of(s, head), {}, {}, {}, {}};
      for (int64_t n = 0; n < staged_; ++n) {
        all.q.emplace_back(at(in.q, in.key_width), plan_.block);
        all.grad_y.emplace_back(at(grad_y, in.value_width), plan_.block);
        all.y.emplace_back(at(y, in.value_width), plan_.block);
      }
      all.dq = {at(out.q, in.key_width), plan_.block};
      heads_.push_back(std::move(all));
    }
  }

  void forward(const Member& team);
  void backward(const Member& team);

 private:
  struct QueryHead {
    Rows rows;
    std::vector<StagedRows<T>> q, grad_y;  // by block in work; forward: by member
    std::vector<UnstagedRows<T>> y;        // by member
    UnstagedRows<T> dq;
  };

  int64_t stride() const { return std::max(key_width_, value_width_); }
  PaddedRows<A> by_slot(bool wanted) const { return {wanted ? slots_.count() : 0, stride()}; }

  const Reads& reads(const PartReads<A>& of, size_t h) const { return of.reads[alike_ ? 0 : h]; }
  const StagedRows<T>& q(size_t h, int64_t n) const { return heads_[h].q[n % staged_]; }
  const StagedRows<T>& grad_y(size_t h, int64_t n) const { return heads_[h].grad_y[n % staged_]; }

  // Rows that heads which read the same go through by turns: what these read stays near. No bit
  // depends on it.
  int64_t turn() const {
    constexpr int64_t kNear = 4;
    return alike_ && heads_.size() > 1 ? kNear : plan_.block;
  }
  // The same where heads add into one row: the order of these sums must not depend on the block.
  int64_t sum_turn() const { return heads_.size() > 1 ? 1 : plan_.block; }

  // Makes rows [begin, end) of a block ready, staged as n: their queries, and what they read.
  void load(PartReads<A>& own, const Slots& slots, int64_t n, int64_t first, int64_t begin,
            int64_t end) const {
    own.reads.resize(alike_ ? 1 : heads_.size());
    own.p.resize(heads_.size());
    for (size_t h = 0; h < own.reads.size(); ++h) {
      own.reads[h].assign(heads_[h].rows, slots, stride(), begin, end, in_.include_self);
    }
    for (size_t h = 0; h < heads_.size(); ++h) {
      q(h, n).load(first, begin, end);
      own.p[h].resize(reads(own, h).size());
    }
  }

  // body(h, reads) for all rows of a part, a head after another every `turn` rows, last rows first.
  template <typename Body>
  void each_head(const PartReads<A>& of, int64_t turn, const Body& body) const {
    const int64_t first = of.reads[0].begin();
    for (int64_t end = of.reads[0].end(); end > first; end -= turn) {
      for (size_t h = 0; h < heads_.size(); ++h) {
        body(h, reads(of, h).part(std::max(first, end - turn), end));
      }
    }
  }

  void logits(const PartReads<A>& own, int64_t n, int64_t first) const {
    each_head(own, turn(), [&](size_t h, const ReadsView& reads) {
      rows_.dots(reads, q(h, n).rows(first), k_.data(), key_width_, static_cast<A>(in_.scale),
                 own.p[h]);
    });
  }

  void softmax(const PartReads<A>& part) const {
    for (size_t h = 0; h < heads_.size(); ++h) rows_.softmax(reads(part, h), part.p[h]);
  }

  // p becomes the gradient of the logits; u[h] is scratch.
  void logit_gradients(const PartReads<A>& part, int64_t n, int64_t first, const A* factor,
                       std::vector<PerRead<A>>& u) const {
    u.resize(heads_.size());
    for (size_t h = 0; h < heads_.size(); ++h) u[h].resize(reads(part, h).size());
    each_head(part, turn(), [&](size_t h, const ReadsView& reads) {
      rows_.dots(reads, grad_y(h, n).rows(first), v_.data(), value_width_, A{1}, u[h]);
    });
    for (size_t h = 0; h < heads_.size(); ++h) {
      rows_.softmax_backward(reads(part, h), part.p[h], u[h], nullptr, factor);
    }
  }

  const RowLoops<A> rows_ = row_loops<A>();
  const SparseAttentionInputs<T>& in_;
  bool alike_;
  Crews crews_;
  BlockPlan plan_;
  Slots slots_;
  int64_t key_width_, value_width_;  // padded
  SlotRows<T> k_, v_;                // these and their gradients of one stride
  PaddedRows<A> dk_by_slot_, dv_by_slot_;
  UnstagedRows<T> dk_, dv_;
  std::vector<QueryHead> heads_;
  int64_t staged_;                               // blocks whose rows are staged
  PartsInWork<PartReads<A>> in_work_;            // of the backward
  std::vector<PartReads<A>> own_;                // of the forward, by member
  std::vector<std::vector<PerRead<A>>> slopes_;  // by member and query head: grad_y_i . v_j
};

template <typename T>
void Heads<T>::forward(const Member& team) {
  Slots slots = slots_;
  PartReads<A>& own = own_[team.rank()];
  // No row waits for another. Unless slots are used again, a team enters all tokens first and then
  // has a block each: its members wait for one another once.
  const bool ahead = crews_.apart;
  const auto enter = [&](std::pair<int64_t, int64_t> rows) {
    const Entering tokens{nullptr, rows.first, rows.second - rows.first, &slots};
    k_.enter(tokens);
    v_.enter(tokens);
  };
  if (ahead) {
    enter(team.share(0, plan_.length));
    team.sync();
  }
  for (int64_t n = ahead ? team.rank() : 0; n < plan_.count(); n += ahead ? team.size() : 1) {
    const auto [first, last] = plan_.rows(n);
    const auto [begin, end] = ahead ? std::pair(first, last) : team.share(first, last);
    if (!ahead) {
      slots.forward(heads_[0].rows, first, last);
      enter({begin, end});
    }
    load(own, slots, team.rank(), first, begin, end);
    if (!ahead) team.sync();
    logits(own, team.rank(), first);
    softmax(own);
    each_head(own, turn(), [&](size_t h, const ReadsView& reads) {
      rows_.gather(reads, own.p[h], v_.data(), heads_[h].y[team.rank()].rows(first), 0,
                   value_width_);
    });
    for (const QueryHead& head : heads_) {
      head.y[team.rank()].store(first, begin, end, 0, value_width_);
    }
    if (!ahead) team.sync();
  }
  own = {};  // to the thread that took it
}

template <typename T>
void Heads<T>::backward(const Member& team) {
  Slots slots = slots_;
  const bool want_logits = dk_ || heads_[0].dq;
  const std::vector<A> factor(plan_.block, static_cast<A>(in_.scale));
  const int64_t count = plan_.count();
  const auto span = [&](int64_t n) { return plan_.rows(count - 1 - n); };  // last first
  BackwardEntering entering(heads_[0].rows, plan_, slots);
  Pipeline(team, crews_)
      .run(count,
           {{Crew::kStates,
             [&](int64_t n, const Member& crew) {
               in_pieces(entering(n, crew), [&](const Entering& piece) {
                 v_.enter(piece);
                 if (dv_) enter_loops<A>().zero(piece, value_width_, dv_by_slot_.view());
               });
               const auto [first, last] = span(n);
               const auto [begin, end] = crew.share(first, last);
               for (size_t h = 0; h < heads_.size(); ++h) grad_y(h, n).load(first, begin, end);
             }},
            {Crew::kKeys,
             [&](int64_t n, const Member& crew) {
               in_pieces(entering(n, crew), [&](const Entering& piece) {
                 k_.enter(piece);
                 if (dk_) enter_loops<A>().zero(piece, key_width_, dk_by_slot_.view());
               });
               const auto [first, last] = span(n);
               const auto [begin, end] = crew.share(first, last);
               load(in_work_.of(n)[crew.rank()], slots, n, first, begin, end);
             },
             /*alongside=*/true},
            {Crew::kKeys,
             [&](int64_t n, const Member& crew) {
               logits(in_work_.of(n)[crew.rank()], n, span(n).first);
             }},
            {Crew::kStates,
             [&](int64_t n, const Member& crew) {
               for_own(in_work_.of(n), crew, [&](const PartReads<A>& part) { softmax(part); });
             }},
            {Crew::kStates,
             [&](int64_t n, const Member& crew) {
               if (!dv_) return;
               const auto [first, last] = span(n);
               const auto [from, to] = crew.share(0, value_width_, kPad);
               const auto& parts = in_work_.of(n);
               for (size_t part = parts.size(); part-- > 0;) {
                 each_head(parts[part], sum_turn(), [&](size_t h, const ReadsView& reads) {
                   rows_.scatter(reads, parts[part].p[h], grad_y(h, n).rows(first), dv_by_slot_[0],
                                 from, to);
                 });
               }
               write(dv_, dv_by_slot_, slots, first, last, from, to);
             }},
            {Crew::kStates,
             [&](int64_t n, const Member& crew) {
               if (!want_logits) return;
               for_own(in_work_.of(n), crew, [&](const PartReads<A>& part) {
                 logit_gradients(part, n, span(n).first, factor.data(), slopes_[team.rank()]);
               });
             }},
            {Crew::kKeys, [&](int64_t n, const Member& crew) {
               const auto [first, last] = span(n);
               const auto& parts = in_work_.of(n);
               if (heads_[0].dq) {
                 const PartReads<A>& own = parts[crew.rank()];
                 each_head(own, turn(), [&](size_t h, const ReadsView& reads) {
                   rows_.gather(reads, own.p[h], k_.data(), heads_[h].dq.rows(first), 0,
                                key_width_);
                 });
                 for (const QueryHead& head : heads_) {
                   head.dq.store(first, own.reads[0].begin(), own.reads[0].end(), 0, key_width_);
                 }
               }
               if (!dk_) return;
               const auto [from, to] = crew.share(0, key_width_, kPad);
               for (size_t part = parts.size(); part-- > 0;) {
                 each_head(parts[part], sum_turn(), [&](size_t h, const ReadsView& reads) {
                   rows_.scatter(reads, parts[part].p[h], q(h, n).rows(first), dk_by_slot_[0], from,
                                 to);
                 });
               }
               write(dk_, dk_by_slot_, slots, first, last, from, to);
             }}});
  in_work_.give_back(team);
  slopes_[team.rank()].clear();  // to the thread that took it
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
