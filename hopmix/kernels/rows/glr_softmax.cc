#include "hopmix/kernels/rows/glr_softmax.h"

#include <vector>

#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/rows/glr_softmax_loops.h"
#include "hopmix/kernels/rows/head_rows.h"
#include "hopmix/kernels/rows/pass.h"
#include "hopmix/kernels/rows/row_loops.h"
#include "hopmix/kernels/rows/scores.h"
#include "hopmix/kernels/rows/shared_gradient.h"
#include "hopmix/kernels/rows/slot_rows.h"
#include "hopmix/kernels/rows/solved.h"

namespace hopmix::kernels {
namespace {

// Some query heads of one key/value head, in turn. README.md has the equations. Whoever sweeps the
// keys computes the weights, and backward also has v; dv goes with the states, as lambda does.
template <typename T>
class Heads {
 public:
  using A = Accumulator<T>;
  using Part = JointReads<A>;
  using enum Order;
  using enum Sweeps;

  Heads(const GlrSoftmaxInputs<T>& in, const HeadGroup& group, T* y, const T* given_y,
        const T* grad_y, const GlrSoftmaxGradients<T>& out, int64_t team)
      : in_(in),
        pass_(in.rows, group.s.length, in.key_width, in.value_width, team),
        scores_(in, group, group.count, out.q, out.k, pass_),
        v_(group.shared(in.v, in.value_width), pass_.slots(), pass_.stride()),
        d_(pass_.slots()),
        g_(pass_.slots()),
        y_by_slot_(pass_.by_slot(y || kRoundsOutput<T>)),
        y_(group.query(0, y, in.value_width), pass_),
        dy_from_readers_(pass_.by_slot(grad_y)),
        dv_(group.shared(out.v, in.value_width), pass_, group.count, grad_y != nullptr) {
    for (int64_t h = 0; h < group.count; ++h) {
      heads_.push_back({group.query(h, grad_y, in.value_width), group.query(h, in.d, 1),
                        group.query(h, in.d_self, 1), group.query(h, in.g, 1),
                        group.query(h, out.d, 1), group.query(h, out.d_self, 1),
                        group.query(h, out.g, 1)});
      solved_.emplace_back(y_.exact(group.query(h, given_y, in.value_width)), pass_.slots(),
                           pass_.stride());
    }
    const int64_t block = pass_.plan().block;
    for (int64_t n = 0; n < pass_.places(); ++n) {
      work_.push_back({heads_[0].grad_y.copy(block), PaddedRows<A>(kNumbers, block),
                       PaddedRows<A>(grad_y ? block : 0, in.value_width)});
    }
  }

  void forward(const Member& team) {
    forward(0, team);
    pass_.give_back(team);
  }

  void backward(const Member& team) {
    for (int64_t h = 0; h < static_cast<int64_t>(heads_.size()); ++h) {
      if constexpr (kRoundsOutput<T>) forward(h, team);
      pass_.run(*this, kLastToFirst, h, team,
                {{kStates, &Heads::enter_solved},
                 {kKeys, &Heads::enter_keys},
                 {kKeys, &Heads::enter_values},
                 {kKeys, &Heads::load},
                 {kKeys, &Heads::weigh},
                 {kStates, &Heads::solve_transposed},
                 {kStates, &Heads::recurrent_weight_gradients},
                 {kKeys, &Heads::d_logits},
                 {kKeys, &Heads::key_gradients}});
    }
    pass_.give_back(team);
  }

 private:
  struct Head {
    HeadOf<const T> grad_y, d, d_self, g;
    HeadOf<T> dd, dd_self, dg;
  };

  // Numbers of each row of a block. kSelf: the weight of x_i.
  enum { kOwn, kGate, kSelf, kOwnGradient, kGateGradient, kNumbers };

  // Of a block in work.
  struct Work {
    PaddedRows<A> grad_y;  // if copied
    PaddedRows<A> numbers, lambda;
  };

  void forward(int64_t h, const Member& team) {
    pass_.run(*this, kFirstToLast, h, team,
              {{kStates, &Heads::enter_values},
               {kKeys, &Heads::enter_keys},
               {kKeys, &Heads::load},
               {kKeys, &Heads::weigh},
               {kStates, &Heads::solve}});
  }

  void enter_values(int64_t, const Entering& tokens) { v_.enter(tokens); }

  void enter_keys(int64_t h, const Entering& tokens) {
    scores_.enter(tokens);
    d_.enter(tokens, heads_[h].d);
    if (in_.gate_on_read) g_.enter(tokens, heads_[h].g);
  }

  void enter_solved(int64_t h, const Entering& tokens) {
    solved_[h].enter(tokens);
    dv_.enter(tokens);
    enter_loops<A>().zero(tokens, pass_.value_width(), dy_from_readers_.view());
  }

  void load(const Block& b, Part& part, int64_t begin, int64_t end) {
    const Head& head = heads_[b.head];
    const Work& work = work_[b.place];
    scores_.load(b.head, b, begin, end);
    head.grad_y.load(work.grad_y, b.first, begin, end);
    head.d_self.load_numbers(b.first, begin, end, work.numbers[kOwn]);
    head.g.load_numbers(b.first, begin, end, work.numbers[kGate]);
    part.reads.assign(in_.rows, b.slots, pass_.stride(), begin, end);
    for (PerRead<A>* x : {&part.direct, &part.recurrent}) x->resize(part.reads.size());
    if (!head.grad_y) return;
    for (PerRead<A>* x : {&part.d_direct, &part.d_recurrent}) x->resize(part.reads.size());
  }

  // (a_ii, a_i., b_i.) = softmax of (d_self_i, s_ij + d_j, s_ij + g_i)
  void weigh(const Block& b, Part& part) {
    scores_.make(b.head, b, part.reads, part.direct);
    loops_.weigh(block_of(b), part);
  }

  // y_i = a_ii v_i + sum_j (a_ij v_j + b_ij y_j)
  void solve(const Block& b, Part& part, Columns c) {
    loops_.solve(block_of(b), part, b.slots, c.from, c.to);
    y_.store(b, part.reads, c);
  }

  // lambda_i, dv_i, and what row i sends back to y_j and v_j
  void solve_transposed(const Block& b, Part& part, Columns c) {
    loops_.solve_transposed(block_of(b), part, b.slots, c.from, c.to);
    dv_.store(b, part.reads, c);
  }

  bool wants_logits(const Head& head) const {
    return scores_.wants_gradients() || head.dd || head.dd_self || head.dg;
  }

  // lambda_i . y_j
  void recurrent_weight_gradients(const Block& b, Part& part) {
    if (!wants_logits(heads_[b.head])) return;
    rows_.dots(part.reads, read_only(block_of(b).lambda), solved_[b.head].data(),
               pass_.value_width(), A{1}, part.d_recurrent);
  }

  // lambda_i . v_j, and with it the gradients of the logits; those of the scores are in `direct`.
  void d_logits(const Block& b, Part& part) {
    const Head& head = heads_[b.head];
    if (!wants_logits(head)) return;
    const JointBlock<A> all = block_of(b);
    const int64_t begin = part.reads.begin(), end = part.reads.end();
    rows_.dots(part.reads, read_only(all.lambda), v_.data(), pass_.value_width(), A{1},
               part.d_direct);
    loops_.d_logits(all, part, b.slots, pass_.value_width());
    head.dd_self.store_numbers(b.first, begin, end, all.dd_self);
    if (!in_.gate_on_read) head.dg.store_numbers(b.first, begin, end, all.dg);
    scores_.query_gradients(b.head, b, part.reads, part.direct);
  }

  // Also what belongs to j alone: a number each, for one member.
  void key_gradients(const Block& b, Part& part, Columns c) {
    if (c.to == pass_.key_width()) {
      d_.take(part.reads, part.d_direct, b.slots, heads_[b.head].dd);
      if (in_.gate_on_read) g_.take(part.reads, part.d_recurrent, b.slots, heads_[b.head].dg);
    }
    scores_.add_key_gradients(b.head, b, part.reads, part.direct, c);
    scores_.store_key_gradients(b, part.reads, c);
  }

  JointBlock<A> block_of(const Block& b) {
    const Work& work = work_[b.place];
    JointBlock<A> all{};
    all.first = b.first;
    all.d_self = work.numbers[kOwn];
    all.g = in_.gate_on_read ? g_.data() : work.numbers[kGate];
    all.d = d_.data();
    all.gate_on_read = in_.gate_on_read;
    all.self = work.numbers[kSelf];
    all.v = v_.view();
    all.y = y_by_slot_.view();
    all.out = y_.rows(b.first);
    all.grad_y = heads_[b.head].grad_y.block(work.grad_y, b.first);
    all.dy_from_readers = dy_from_readers_.view();
    all.dv = dv_.view();
    all.lambda = {work.lambda.view(), b.first};
    all.dd_self = work.numbers[kOwnGradient];
    all.dg = work.numbers[kGateGradient];
    all.scale = static_cast<A>(in_.scale);
    return all;
  }

  const RowLoops<A> rows_ = row_loops<A>();
  const JointLoops<A> loops_ = joint_loops<A>();
  const GlrSoftmaxInputs<T>& in_;
  Pass<Part> pass_;
  Scores<T> scores_;
  SlotRows<T> v_;
  SlotNumbers<T> d_, g_;
  PaddedRows<A> y_by_slot_;  // while it is solved
  Solved<T> y_;
  PaddedRows<A> dy_from_readers_;
  SlotGradient<T> dv_;
  std::vector<Head> heads_;
  std::vector<SlotRows<A>> solved_;  // y of each head
  std::vector<Work> work_;           // by place
};

}  // namespace

template <typename T>
void glr_softmax(const GlrSoftmaxInputs<T>& in, T* y) {
  const auto make = [&](const HeadGroup& group, int64_t team) {
    return Heads<T>(in, group, y, nullptr, nullptr, {}, team);
  };
  for_each_group(in, 1, padded(in.value_width) / kPad, make, &Heads<T>::forward);
}

// A task owns a key/value head, so the sums into dk and dv have one order.
template <typename T>
void glr_softmax_backward(const GlrSoftmaxInputs<T>& in, const T* y, const T* grad_y,
                          const GlrSoftmaxGradients<T>& out) {
  const auto make = [&](const HeadGroup& group, int64_t team) {
    return Heads<T>(in, group, nullptr, y, grad_y, out, team);
  };
  const int64_t group = in.heads / in.kv_heads;
  for_each_group(in, group, padded(in.value_width) / kPad, make, &Heads<T>::backward);
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
