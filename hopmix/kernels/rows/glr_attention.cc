#include "hopmix/kernels/rows/glr_attention.h"

#include <vector>

#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/rows/glr_attention_loops.h"
#include "hopmix/kernels/rows/head_rows.h"
#include "hopmix/kernels/rows/pass.h"
#include "hopmix/kernels/rows/row_loops.h"
#include "hopmix/kernels/rows/scores.h"
#include "hopmix/kernels/rows/shared_gradient.h"
#include "hopmix/kernels/rows/solved.h"

namespace hopmix::kernels {
namespace {

// Some query heads of one key/value head, in turn. README.md has the equations.
template <typename T>
class Heads {
 public:
  using A = Accumulator<T>;
  using enum Order;
  using enum Sweeps;

  struct Part {
    using Number = A;
    Reads reads;
    PerRead<A> p;  // P, later ds scale
    PerRead<A> u;  // L_i . z_j
  };

  Heads(const GlrAttentionInputs<T>& in, const HeadGroup& group, T* y, const T* given_y,
        const T* grad_y, const GlrAttentionGradients<T>& out, int64_t team)
      : scale_(static_cast<A>(in.scale)),
        pass_(in.rows.of(group.s, group.first), group.s.length, in.key_width, in.value_width, team),
        scores_(in, group, group.count, out.q, out.k, pass_),
        v_(group.shared(in.v, in.value_width)),
        z_(pass_.by_slot()),
        dz_from_readers_(pass_.by_slot(grad_y)),
        y_(group.query(0, y, in.value_width), pass_),
        dv_(group.shared(out.v, in.value_width), pass_.plan(), group.count) {
    for (int64_t h = 0; h < group.count; ++h) {
      heads_.push_back(
          {in.rows.of(group.s, group.first + h), group.query(h, grad_y, in.value_width),
           y_.exact(group.query(h, given_y, in.value_width)), group.query(h, in.gate, 1),
           group.query(h, in.d, 1), group.query(h, in.d_self, 1), group.query(h, out.gate, 1),
           group.query(h, out.d, 1), group.query(h, out.d_self, 1)});
    }
    const Head& head = heads_[0];
    const int64_t block = pass_.plan().block;
    for (int64_t n = 0; n < pass_.places(); ++n) {
      work_.push_back({v_.copy(block), head.grad_y.copy(block), PaddedRows<A>(kNumbers, block),
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
                {{kStates, &Heads::enter_states},
                 {kKeys, &Heads::enter_keys},
                 {kKeys, &Heads::load},
                 {kKeys, &Heads::logits},
                 {kStates, &Heads::softmax},
                 {kStates, &Heads::solve_transposed},
                 {kStates, &Heads::d_logits},
                 {kKeys, &Heads::query_gradients},
                 {kKeys, &Heads::key_gradients}});
    }
    pass_.give_back(team);
  }

 private:
  struct Head {
    Rows rows;
    HeadOf<const T> grad_y;
    HeadOf<const A> y;
    HeadOf<const T> gate, d, d_self;
    HeadOf<T> dgate, dd, dd_self;
  };

  // Numbers of each row of a block.
  enum { kGate, kDirect, kOwn, kGateGradient, kDirectGradient, kOwnGradient, kFactor, kNumbers };

  // Of a block in work.
  struct Work {
    PaddedRows<A> v, grad_y;  // if copied
    PaddedRows<A> numbers;
    PaddedRows<A> dz;  // L
  };

  void forward(int64_t h, const Member& team) {
    pass_.run(*this, kFirstToLast, h, team,
              {{kKeys, &Heads::enter_keys},
               {kKeys, &Heads::load},
               {kKeys, &Heads::logits},
               {kStates, &Heads::softmax},
               {kStates, &Heads::solve}});
  }

  void enter_keys(int64_t, const Entering& tokens) { scores_.enter(tokens); }

  // z = y + d v; nothing was sent back to it yet.
  void enter_states(int64_t h, const Entering& tokens) {
    const Head& head = heads_[h];
    enter_loops<A>().copy(tokens, head.y, z_.view());
    enter_loops<T>().add(tokens, head.d, v_, z_.view());
    enter_loops<A>().zero(tokens, pass_.value_width(), dz_from_readers_.view());
  }

  void load(const Block& b, Part& part, int64_t begin, int64_t end) {
    const Head& head = heads_[b.head];
    const Work& work = work_[b.place];
    scores_.load(b.head, b, begin, end);
    v_.load(work.v, b.first, begin, end);
    head.grad_y.load(work.grad_y, b.first, begin, end);
    head.gate.load_numbers(b.first, begin, end, work.numbers[kGate]);
    head.d.load_numbers(b.first, begin, end, work.numbers[kDirect]);
    head.d_self.load_numbers(b.first, begin, end, work.numbers[kOwn]);
    part.reads.assign(head.rows, b.slots, pass_.stride(), begin, end);
    part.p.resize(part.reads.size());
    if (head.grad_y) part.u.resize(part.reads.size());
  }

  void logits(const Block& b, Part& part) { scores_.make(b.head, b, part.reads, part.p); }

  void softmax(const Block&, Part& part) { rows_.softmax(part.reads, part.p); }

  // z_i = (d_i + d_self_i) v_i + gate_i sum_j P_ij z_j,  y_i = z_i - d_i v_i
  void solve(const Block& b, Part& part, Columns c) {
    GlrAttentionBlock<A> all = block_of(b);
    all.y = y_.rows(b.first);
    loops_.solve(all, part.reads, part.p, b.slots, c.from, c.to);
    y_.store(b, part.reads, c);
  }

  // L_i, dv_i, and what row i sends back to z_j
  void solve_transposed(const Block& b, Part& part, Columns c) {
    loops_.solve_transposed(block_of(b), part.reads, part.p, b.slots, c.from, c.to);
    dv_.store(b, part.reads, c);
  }

  // dgate, dd, dd_self, and p becomes scale ds
  void d_logits(const Block& b, Part& part) {
    const Head& head = heads_[b.head];
    const bool wants_logits = scores_.wants_gradients();
    const GlrAttentionBlock<A> all = block_of(b);
    const PaddedRows<A>& numbers = work_[b.place].numbers;
    const int64_t begin = part.reads.begin(), end = part.reads.end(), at = begin - b.first;
    loops_.gate_gradients(all, b.slots, begin, end, pass_.value_width());
    if (head.dgate || wants_logits) {
      rows_.dots(part.reads, read_only(all.dz), z_[0], pass_.value_width(), A{1}, part.u);
      A* factor = numbers[kFactor];
      for (int64_t i = begin; i < end; ++i) factor[i - b.first] = scale_ * all.gate[i - b.first];
      rows_.softmax_backward(part.reads, part.p, part.u, numbers[kGateGradient] + at,
                             wants_logits ? factor + at : nullptr);
    }
    head.dgate.store_numbers(b.first, begin, end, numbers[kGateGradient]);
    head.dd.store_numbers(b.first, begin, end, numbers[kDirectGradient]);
    head.dd_self.store_numbers(b.first, begin, end, numbers[kOwnGradient]);
  }

  void query_gradients(const Block& b, Part& part) {
    scores_.query_gradients(b.head, b, part.reads, part.p);
  }

  void key_gradients(const Block& b, Part& part, Columns c) {
    scores_.add_key_gradients(b.head, b, part.reads, part.p, c);
    scores_.store_key_gradients(b, part.reads, c);
  }

  GlrAttentionBlock<A> block_of(const Block& b) const {
    const Head& head = heads_[b.head];
    const Work& work = work_[b.place];
    GlrAttentionBlock<A> all{};
    all.first = b.first;
    all.v = v_.block(work.v, b.first);
    all.gate = work.numbers[kGate];
    all.d = work.numbers[kDirect];
    all.d_self = work.numbers[kOwn];
    all.z = z_.view();
    all.grad_y = head.grad_y.block(work.grad_y, b.first);
    all.dz_from_readers = dz_from_readers_.view();
    all.dz = {work.dz.view(), b.first};
    all.want_dv = static_cast<bool>(dv_);
    all.dv = dv_.rows(b.first);
    all.dd = head.dd ? work.numbers[kDirectGradient] : nullptr;
    all.dd_self = head.dd_self ? work.numbers[kOwnGradient] : nullptr;
    return all;
  }

  const RowLoops<A> rows_ = row_loops<A>();
  const GlrAttentionLoops<A> loops_ = glr_attention_loops<A>();
  A scale_;
  Pass<Part> pass_;
  Scores<T> scores_;
  HeadOf<const T> v_;
  PaddedRows<A> z_,
      dz_from_readers_;  // by slot; dz_from_readers: what the readers of a token send back to z
  Solved<T> y_;
  SharedGradient<T> dv_;
  std::vector<Head> heads_;
  std::vector<Work> work_;  // by place
};

}  // namespace

template <typename T>
void glr_attention(const GlrAttentionInputs<T>& in, T* y) {
  const auto make = [&](const HeadGroup& group, int64_t team) {
    return Heads<T>(in, group, y, nullptr, nullptr, {}, team);
  };
  for_each_group(in, 1, padded(in.value_width) / kPad, make, &Heads<T>::forward);
}

// A task owns a key/value head, so the sums into dk and dv have one order.
template <typename T>
void glr_attention_backward(const GlrAttentionInputs<T>& in, const T* y, const T* grad_y,
                            const GlrAttentionGradients<T>& out) {
  const auto make = [&](const HeadGroup& group, int64_t team) {
    return Heads<T>(in, group, nullptr, y, grad_y, out, team);
  };
  const int64_t group = in.heads / in.kv_heads;
  for_each_group(in, group, padded(in.value_width) / kPad, make, &Heads<T>::backward);
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
