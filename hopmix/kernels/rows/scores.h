// s_ij = scale q_i . k_j of some query heads of one key/value head, and back.
#pragma once

#include <cstdint>
#include <vector>

#include "hopmix/kernels/rows/head_rows.h"
#include "hopmix/kernels/rows/pass.h"
#include "hopmix/kernels/rows/row_loops.h"
#include "hopmix/kernels/rows/shared_gradient.h"
#include "hopmix/kernels/rows/slot_rows.h"

namespace hopmix::kernels {

/// Of heads that share a pass dk has one sum; `passes` that add to it follow one another.
template <typename T>
class Scores {
 public:
  using A = Accumulator<T>;

  template <typename Inputs, typename Part>
  Scores(const Inputs& in, const HeadGroup& group, int64_t passes, T* dq, T* dk,
         const Pass<Part>& pass)
      : width_(pass.key_width()),
        scale_(static_cast<A>(in.scale)),
        k_(group.shared(in.k, in.key_width), pass.slots(), pass.stride()),
        dk_(group.shared(dk, in.key_width), pass, passes),
        copies_(pass.places()) {
    const int64_t block = pass.plan().block;
    for (int64_t h = 0; h < group.count; ++h) {
      q_.push_back(group.query(h, in.q, in.key_width));
      dq_.push_back(group.query(h, dq, in.key_width));
      for (auto& copies : copies_) copies.push_back(q_[h].copy(block));
    }
    dq_copy_ = dq_[0].copy(block);
  }

  /// Whether the gradient of a score leads anywhere.
  bool wants_gradients() const { return dq_[0] || dk_; }

  void enter(const Entering& tokens) const {
    k_.enter(tokens);
    dk_.enter(tokens);
  }

  void load(int64_t head, const Block& b, int64_t begin, int64_t end) const {
    q_[head].load(copies_[b.place][head], b.first, begin, end);
  }

  void make(int64_t head, const Block& b, const ReadsView& reads, const PerRead<A>& s) const {
    rows_.dots(reads, queries(head, b), k_.data(), width_, scale_, s);
  }

  /// dq_i = sum_j ds_ij k_j; ds holds the scale.
  void query_gradients(int64_t head, const Block& b, const ReadsView& reads,
                       const PerRead<A>& ds) const {
    const HeadOf<T>& dq = dq_[head];
    if (!dq) return;
    rows_.gather(reads, ds, k_.data(), dq.block(dq_copy_, b.first), 0, width_);
    dq.store(dq_copy_, b.first, reads.begin(), reads.end(), 0, width_);
  }

  /// dk_j += ds_ij q_i, last row first.
  void add_key_gradients(int64_t head, const Block& b, const ReadsView& reads, const PerRead<A>& ds,
                         Columns c) const {
    if (dk_) rows_.scatter(reads, ds, queries(head, b), dk_.data(), c.from, c.to);
  }

  /// Of rows to which no other will add.
  void store_key_gradients(const Block& b, const ReadsView& reads, Columns c) const {
    dk_.store(b, reads, c);
  }

 private:
  BlockRows<const A> queries(int64_t head, const Block& b) const {
    return q_[head].block(copies_[b.place][head], b.first);
  }

  const RowLoops<A> rows_ = row_loops<A>();
  int64_t width_;
  A scale_;
  SlotRows<T> k_;
  SlotGradient<T> dk_;
  std::vector<HeadOf<const T>> q_;
  std::vector<HeadOf<T>> dq_;
  std::vector<std::vector<PaddedRows<A>>> copies_;  // of q, by place and head
  PaddedRows<A> dq_copy_;
};

}  // namespace hopmix::kernels
