#include "hopmix/kernels/rows/sparse_attention.h"

#include <algorithm>
#include <vector>

#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/rows/head_rows.h"
#include "hopmix/kernels/rows/pass.h"
#include "hopmix/kernels/rows/row_loops.h"
#include "hopmix/kernels/rows/scores.h"
#include "hopmix/kernels/rows/shared_gradient.h"
#include "hopmix/kernels/rows/slot_rows.h"

namespace hopmix::kernels {
namespace {

// Some query heads of one key/value head, all in one pass. Each step sweeps one array, and heads
// that read the same rows of it take turns, so that these are fetched once. README.md has the
// equations.
template <typename T>
class Heads {
 public:
  using A = Accumulator<T>;
  using enum Order;
  using enum Sweeps;

  // By query head; reads are those of the first if all read alike.
  struct Part {
    using Number = A;
    std::vector<Reads> reads;
    std::vector<PerRead<A>> p;  // P, later ds scale
    std::vector<PerRead<A>> u;  // G_i . v_j
  };

  Heads(const SparseAttentionInputs<T>& in, const HeadGroup& group, T* y, const T* grad_y,
        const SparseAttentionGradients<T>& out, int64_t team)
      : include_self_(in.include_self),
        alike_(in.rows.alike(group.first, group.count)),
        pass_(in.rows.of(group.s, group.first), group.s.length, in.key_width, in.value_width, team,
              group.count),
        scores_(in, group, /*passes=*/1, out.q, out.k, pass_),
        v_(group.shared(in.v, in.value_width), pass_.slots(), pass_.stride()),
        dv_(group.shared(out.v, in.value_width), pass_),
        scale_(pass_.plan().block, static_cast<A>(in.scale)),
        work_(pass_.places()) {
    const int64_t block = pass_.plan().block;
    for (int64_t h = 0; h < group.count; ++h) {
      heads_.push_back({in.rows.of(group.s, group.first + h),
                        group.query(h, grad_y, in.value_width), group.query(h, y, in.value_width)});
      for (Work& work : work_) work.grad_y.push_back(heads_.back().grad_y.copy(block));
    }
    for (Work& work : work_) work.y = heads_[0].y.copy(block);
  }

  void forward(const Member& team) {
    pass_.run(*this, kFirstToLast, 0, team,
              {{kKeys, &Heads::enter_keys},
               {kStates, &Heads::enter_values},
               {kKeys, &Heads::load},
               {kKeys, &Heads::logits},
               {kStates, &Heads::softmax},
               {kStates, &Heads::sums}});
    pass_.give_back(team);
  }

  void backward(const Member& team) {
    pass_.run(*this, kLastToFirst, 0, team,
              {{kStates, &Heads::enter_values},
               {kKeys, &Heads::enter_keys},
               {kKeys, &Heads::load},
               {kKeys, &Heads::logits},
               {kStates, &Heads::softmax},
               {kStates, &Heads::value_gradients},
               {kStates, &Heads::logit_gradients},
               {kKeys, &Heads::query_gradients},
               {kKeys, &Heads::key_gradients}});
    pass_.give_back(team);
  }

 private:
  struct Head {
    Rows rows;
    HeadOf<const T> grad_y;
    HeadOf<T> y;
  };

  // Of a block in work: what is copied.
  struct Work {
    std::vector<PaddedRows<A>> grad_y;  // by head
    PaddedRows<A> y;
  };

  const Reads& reads(const Part& of, size_t h) const { return of.reads[alike_ ? 0 : h]; }

  // Rows that heads which read the same go through by turns: what these read stays near. No bit
  // depends on it.
  int64_t turn() const {
    constexpr int64_t kNear = 4;
    return alike_ && heads_.size() > 1 ? kNear : pass_.plan().block;
  }
  // The same where heads add into one row: the order of these sums must not depend on the block.
  int64_t sum_turn() const { return heads_.size() > 1 ? 1 : pass_.plan().block; }

  // body(h, reads) for all rows of a part, a head after another every `turn` rows, last rows first.
  template <typename Body>
  void each_head(const Part& of, int64_t turn, const Body& body) const {
    const int64_t first = of.reads[0].begin();
    for (int64_t end = of.reads[0].end(); end > first; end -= turn) {
      for (size_t h = 0; h < heads_.size(); ++h) {
        body(h, reads(of, h).part(std::max(first, end - turn), end));
      }
    }
  }

  void enter_keys(int64_t, const Entering& tokens) { scores_.enter(tokens); }

  void enter_values(int64_t, const Entering& tokens) {
    v_.enter(tokens);
    dv_.enter(tokens);
  }

  void load(const Block& b, Part& part, int64_t begin, int64_t end) {
    part.reads.resize(alike_ ? 1 : heads_.size());
    part.p.resize(heads_.size());
    part.u.resize(heads_.size());
    for (size_t h = 0; h < heads_.size(); ++h) {
      const Head& head = heads_[h];
      if (h < part.reads.size()) {
        part.reads[h].assign(head.rows, b.slots, pass_.stride(), begin, end, include_self_);
      }
      scores_.load(h, b, begin, end);
      head.grad_y.load(work_[b.place].grad_y[h], b.first, begin, end);
      part.p[h].resize(reads(part, h).size());
      if (head.grad_y && scores_.wants_gradients()) part.u[h].resize(reads(part, h).size());
    }
  }

  void logits(const Block& b, Part& part) {
    each_head(part, turn(),
              [&](size_t h, const ReadsView& reads) { scores_.make(h, b, reads, part.p[h]); });
  }

  void softmax(const Block&, Part& part) {
    for (size_t h = 0; h < heads_.size(); ++h) rows_.softmax(reads(part, h), part.p[h]);
  }

  // y_i = sum_j P_ij v_j
  void sums(const Block& b, Part& part) {
    const PaddedRows<A>& copy = work_[b.place].y;
    each_head(part, turn(), [&](size_t h, const ReadsView& reads) {
      const HeadOf<T>& y = heads_[h].y;
      rows_.gather(reads, part.p[h], v_.data(), y.block(copy, b.first), 0, pass_.value_width());
      y.store(copy, b.first, reads.begin(), reads.end(), 0, pass_.value_width());
    });
  }

  BlockRows<const A> grad_y(const Block& b, size_t h) const {
    return heads_[h].grad_y.block(work_[b.place].grad_y[h], b.first);
  }

  // dv_j += P_ij G_i
  void value_gradients(const Block& b, Part& part, Columns c) {
    if (!dv_) return;
    each_head(part, sum_turn(), [&](size_t h, const ReadsView& reads) {
      rows_.scatter(reads, part.p[h], grad_y(b, h), dv_.data(), c.from, c.to);
    });
    dv_.store(b, part.reads[0], c);
  }

  // u_ij = G_i . v_j, and p becomes scale ds
  void logit_gradients(const Block& b, Part& part) {
    if (!scores_.wants_gradients()) return;
    each_head(part, turn(), [&](size_t h, const ReadsView& reads) {
      rows_.dots(reads, grad_y(b, h), v_.data(), pass_.value_width(), A{1}, part.u[h]);
    });
    for (size_t h = 0; h < heads_.size(); ++h) {
      rows_.softmax_backward(reads(part, h), part.p[h], part.u[h], nullptr, scale_.data());
    }
  }

  void query_gradients(const Block& b, Part& part) {
    each_head(part, turn(), [&](size_t h, const ReadsView& reads) {
      scores_.query_gradients(h, b, reads, part.p[h]);
    });
  }

  void key_gradients(const Block& b, Part& part, Columns c) {
    each_head(part, sum_turn(), [&](size_t h, const ReadsView& reads) {
      scores_.add_key_gradients(h, b, reads, part.p[h], c);
    });
    scores_.store_key_gradients(b, part.reads[0], c);
  }

  const RowLoops<A> rows_ = row_loops<A>();
  bool include_self_, alike_;
  Pass<Part> pass_;
  Scores<T> scores_;
  SlotRows<T> v_;
  SlotGradient<T> dv_;
  std::vector<A> scale_;  // for each row of a block
  std::vector<Head> heads_;
  std::vector<Work> work_;  // by place
};

}  // namespace

template <typename T>
void sparse_attention(const SparseAttentionInputs<T>& in, T* y) {
  const auto make = [&](const HeadGroup& group, int64_t team) {
    return Heads<T>(in, group, y, nullptr, {}, team);
  };
  // Heads that read the same keys go together unless threads would be left without work.
  const int64_t all = in.sequences.count() * in.kv_heads;
  const int64_t together = all >= omp_get_max_threads() ? in.heads / in.kv_heads : 1;
  for_each_group(in, together, kAnyTeam, make, &Heads<T>::forward);
}

// A task owns a key/value head, so the sums into dk and dv have one order.
template <typename T>
void sparse_attention_backward(const SparseAttentionInputs<T>& in, const T* grad_y,
                               const SparseAttentionGradients<T>& out) {
  const auto make = [&](const HeadGroup& group, int64_t team) {
    return Heads<T>(in, group, nullptr, grad_y, out, team);
  };
  for_each_group(in, in.heads / in.kv_heads, kAnyTeam, make, &Heads<T>::backward);
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
