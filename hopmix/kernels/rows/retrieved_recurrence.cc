#include "hopmix/kernels/rows/retrieved_recurrence.h"

#include <algorithm>
#include <vector>

#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/rows/head_rows.h"
#include "hopmix/kernels/rows/row_loops.h"

namespace hopmix::kernels {
namespace {

template <typename T>
int64_t entries(const RetrievedRecurrenceInputs<T>& in) {
  return in.sequences.tokens() * in.heads * in.value_width * in.hops;
}

// What one member's rows read, among keys and among states, and for each read P, gate P and a
// dLoss/dP.
template <typename A>
struct MemberReads {
  Reads keys, states;
  PerRead<A> p, w, u;
};

// Some query heads of one key/value head. No row waits for another: a team shares a sequence by its
// rows, and the backward by columns where rows add into what they read.
template <typename T>
class Heads {
 public:
  using A = Accumulator<T>;

  Heads(const RetrievedRecurrenceInputs<T>& in, const Sequence& s, int64_t kv_head,
        int64_t first_head, int64_t count, T* z, const T* grad_z,
        const RetrievedRecurrenceGradients<T>& out, int64_t team)
      : in_(in),
        length_(s.length),
        slots_(in.rows.of(s, first_head), s.length, s.length),
        key_width_(padded(in.key_width)),
        value_width_(padded(in.value_width)),
        k_(s.length, key_width_),
        z_(s.length, grad_z ? every_hop() : value_width_),
        next_(grad_z ? 0 : s.length, value_width_),
        dz_(grad_z ? s.length : 0, every_hop()),
        back_k_(out.k ? s.length : 0, key_width_),
        back_v_(out.v ? s.length : 0, value_width_),
        scalars_(2, s.length),
        from_k_(in.k, in.sequences, s, in.kv_heads, kv_head, in.key_width),
        from_v_(in.v, in.sequences, s, in.kv_heads, kv_head, in.value_width),
        dk_(out.k, in.sequences, s, in.kv_heads, kv_head, in.key_width),
        dv_(out.v, in.sequences, s, in.kv_heads, kv_head, in.value_width),
        members_(team) {
    for (int64_t head = first_head; head < first_head + count; ++head) {
      const auto at = [&](auto* x, int64_t width) {
        return HeadOf(x, in.sequences, s, in.heads, head, width);
      };
      const int64_t states = (in.hops + 1) * in.value_width;
      const HeadOf<const T> q = at(in.q, in.key_width);
      const HeadOf<T> dq = at(out.q, in.key_width);
      heads_.push_back({in.rows.of(s, head), q, q.copy(s.length), at(in.gate, 1), at(z, states),
                        at(grad_z, states), dq, dq.copy(s.length), at(out.gate, 1)});
    }
  }

  void forward(const Member& member);
  void backward(const Member& member);

 private:
  struct QueryHead {
    Rows rows;
    HeadOf<const T> q;
    PaddedRows<A> q_copy;
    HeadOf<const T> gate;
    HeadOf<T> z;
    HeadOf<const T> grad_z;
    HeadOf<T> dq;
    PaddedRows<A> dq_copy;
    HeadOf<T> dgate;

    BlockRows<const A> queries() const { return q.block(q_copy, 0); }
  };

  // Columns of a row that holds the states of all hops: an odd number of lines, or some hop of all
  // rows would fall on few sets of the caches.
  int64_t every_hop() const {
    const int64_t lines = (in_.hops + 1) * value_width_ / kPad;
    return (lines + (lines % 2 == 0)) * kPad;
  }

  // Rows of a buffer from column `first` on.
  template <typename C>
  static BlockRows<C> columns(const PaddedRows<A>& rows, int64_t first) {
    return {{rows[0] + first, rows.view().stride}, 0};
  }

  // Keys, and values as z^(0).
  void enter(int64_t begin, int64_t end) const {
    const Entering entering{nullptr, begin, end - begin, &slots_};
    enter_.copy(entering, from_k_, k_.view());
    enter_.copy(entering, from_v_, z_.view());
  }

  void weights(const QueryHead& head, MemberReads<A>& own, int64_t begin, int64_t end) const;
  void store(const QueryHead& head, int64_t hop, const PaddedRows<A>& z, int64_t begin,
             int64_t end) const;
  void backward(const QueryHead& head, const Member& member);

  const RowLoops<A> rows_ = row_loops<A>();
  const EnterLoops<T> enter_ = enter_loops<T>();
  const RetrievedRecurrenceInputs<T>& in_;
  int64_t length_;
  Slots slots_;
  int64_t key_width_, value_width_;  // padded
  PaddedRows<A> k_, z_, next_;       // z_: of every hop in the backward, else of one
  PaddedRows<A> dz_;                 // dLoss/dz of every hop
  PaddedRows<A> back_k_, back_v_, scalars_;
  HeadOf<const T> from_k_, from_v_;
  HeadOf<T> dk_, dv_;
  std::vector<QueryHead> heads_;
  std::vector<MemberReads<A>> members_;
};

// P and gate P of rows [begin, end).
template <typename T>
void Heads<T>::weights(const QueryHead& head, MemberReads<A>& own, int64_t begin,
                       int64_t end) const {
  own.keys.assign(head.rows, slots_, k_.view().stride, begin, end);
  own.states.assign(head.rows, slots_, z_.view().stride, begin, end);
  own.p.resize(own.keys.size());
  own.w.resize(own.keys.size());
  head.q.load(head.q_copy, 0, begin, end);
  rows_.dots(own.keys, head.queries(), k_[0], key_width_, static_cast<A>(in_.scale), own.p);
  rows_.softmax(own.keys, own.p);
  for (int64_t i = begin; i < end; ++i) {
    const A gate = static_cast<A>(*head.gate[i]);
    const A* p = own.p.at(own.keys, i);
    A* w = own.w.at(own.keys, i);
    for (int64_t r = 0; r < own.keys.count(i); ++r) w[r] = gate * p[r];
  }
}

template <typename T>
void Heads<T>::store(const QueryHead& head, int64_t hop, const PaddedRows<A>& z, int64_t begin,
                     int64_t end) const {
  for (int64_t i = begin; i < end; ++i) {
    T* to = head.z[i] + hop * in_.value_width;
    for (int64_t c = 0; c < in_.value_width; ++c) to[c] = static_cast<T>(z[i][c]);
  }
}

template <typename T>
void Heads<T>::forward(const Member& member) {
  const QueryHead& head = heads_[0];
  MemberReads<A>& own = members_[member.rank()];
  const auto [begin, end] = member.share(0, length_);
  enter(begin, end);
  store(head, 0, z_, begin, end);
  member.sync();
  weights(head, own, begin, end);
  for (int64_t hop = 1; hop <= in_.hops; ++hop) {
    const PaddedRows<A>&from = hop % 2 == 1 ? z_ : next_, &to = hop % 2 == 1 ? next_ : z_;
    rows_.gather(own.states, own.w, from[0], columns<A>(to, 0), 0, value_width_);
    store(head, hop, to, begin, end);
    member.sync();
  }
  own = {};  // to the thread that took it
}

template <typename T>
void Heads<T>::backward(const Member& member) {
  if (length_ == 0) return;
  const auto [begin, end] = member.share(0, length_);
  enter(begin, end);
  for (int64_t i = begin; i < end; ++i) {
    if (dk_) std::fill_n(back_k_[i], key_width_, A{0});
    if (dv_) std::fill_n(back_v_[i], value_width_, A{0});
  }
  for (const QueryHead& head : heads_) backward(head, member);
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t c = 0; dk_ && c < dk_.width; ++c) dk_[i][c] = static_cast<T>(back_k_[i][c]);
    for (int64_t c = 0; dv_ && c < dv_.width; ++c) dv_[i][c] = static_cast<T>(back_v_[i][c]);
  }
  members_[member.rank()] = {};  // to the thread that took it
}

template <typename T>
void Heads<T>::backward(const QueryHead& head, const Member& member) {
  MemberReads<A>& own = members_[member.rank()];
  const int64_t hops = in_.hops, width = value_width_;
  const auto [begin, end] = member.share(0, length_);
  const auto [from, to] = member.share(0, width, kPad);
  const auto [key_from, key_to] = member.share(0, key_width_, kPad);
  const bool want_logits = head.dq || dk_;
  A *mean = scalars_[0], *factor = scalars_[1];

  for (int64_t i = begin; i < end; ++i) {
    for (int64_t hop = 0; hop <= hops; ++hop) {
      load_row(head.grad_z[i] + hop * in_.value_width, in_.value_width, dz_[i] + hop * width);
    }
    factor[i] = static_cast<A>(in_.scale) * static_cast<A>(*head.gate[i]);
  }
  member.sync();
  weights(head, own, begin, end);
  for (int64_t hop = 1; hop < hops; ++hop) {
    rows_.gather(own.states, own.w, z_[0] + (hop - 1) * width, columns<A>(z_, hop * width), 0,
                 width);
    member.sync();
  }
  member.sync();

  // Columns of one hop lead to the same columns of the hop before: a member's own.
  for (int64_t hop = hops; hop >= 1; --hop) {
    for (size_t part = members_.size(); part-- > 0;) {
      const MemberReads<A>& theirs = members_[part];
      rows_.scatter(theirs.states, theirs.w, columns<const A>(dz_, hop * width),
                    dz_[0] + (hop - 1) * width, from, to);
    }
  }
  member.sync();

  for (int64_t i = begin; dv_ && i < end; ++i) {
    for (int64_t c = 0; c < width; ++c) back_v_[i][c] += dz_[i][c];
  }
  if (want_logits || head.dgate) {
    own.u.resize(own.states.size());
    rows_.dots(own.states, columns<const A>(dz_, width), z_[0], hops * width, A{1}, own.u);
    rows_.softmax_backward(own.states, own.p, own.u, mean + begin,
                           want_logits ? factor + begin : nullptr);
  }
  head.dgate.store_numbers(0, begin, end, mean);
  if (head.dq) {
    rows_.gather(own.keys, own.p, k_[0], head.dq.block(head.dq_copy, 0), 0, key_width_);
    head.dq.store(head.dq_copy, 0, begin, end, 0, key_width_);
  }
  member.sync();
  for (size_t part = members_.size(); dk_ && part-- > 0;) {
    const MemberReads<A>& theirs = members_[part];
    rows_.scatter(theirs.keys, theirs.p, head.queries(), back_k_[0], key_from, key_to);
  }
  member.sync();
}

}  // namespace

template <typename T>
void retrieved_recurrence(const RetrievedRecurrenceInputs<T>& in, T* z) {
  const int64_t group = in.heads / in.kv_heads;
  parallel_teams(
      in.sequences.count() * in.heads, entries(in), kAnyTeam,
      [&](int64_t task, int64_t team) {
        const int64_t head = task % in.heads;
        return Heads<T>(in, in.sequences.list[task / in.heads], head / group, head, 1, z, nullptr,
                        {}, team);
      },
      [&](int64_t, Heads<T>& task, const Member& member) { task.forward(member); });
}

template <typename T>
void retrieved_recurrence_backward(const RetrievedRecurrenceInputs<T>& in, const T* grad_z,
                                   const RetrievedRecurrenceGradients<T>& out) {
  const int64_t group = in.heads / in.kv_heads;
  // A task owns a key/value head, so the sums into dk and dv have one order.
  parallel_teams(
      in.sequences.count() * in.kv_heads, entries(in), kAnyTeam,
      [&](int64_t task, int64_t team) {
        const int64_t kv_head = task % in.kv_heads;
        return Heads<T>(in, in.sequences.list[task / in.kv_heads], kv_head, kv_head * group, group,
                        nullptr, grad_z, out, team);
      },
      [&](int64_t, Heads<T>& task, const Member& member) { task.backward(member); });
}

template void retrieved_recurrence(const RetrievedRecurrenceInputs<float>&, float*);
template void retrieved_recurrence(const RetrievedRecurrenceInputs<double>&, double*);
template void retrieved_recurrence(const RetrievedRecurrenceInputs<Bfloat16>&, Bfloat16*);
template void retrieved_recurrence_backward(const RetrievedRecurrenceInputs<float>&, const float*,
                                            const RetrievedRecurrenceGradients<float>&);
template void retrieved_recurrence_backward(const RetrievedRecurrenceInputs<double>&, const double*,
                                            const RetrievedRecurrenceGradients<double>&);
template void retrieved_recurrence_backward(const RetrievedRecurrenceInputs<Bfloat16>&,
                                            const Bfloat16*,
                                            const RetrievedRecurrenceGradients<Bfloat16>&);

}  // namespace hopmix::kernels
