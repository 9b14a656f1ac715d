// Decay of the state of the delta rule (delta_chunk.h; delta_head_decay.h lists the interface) by
// one number per token and key channel. Keys read like queries: both are readers of the tree.
#pragma once

#include <algorithm>
#include <optional>

#include "hopmix/kernels/chunked/decay_tree.h"
#include "hopmix/kernels/chunked/delta_tile.h"

namespace hopmix::kernels {

template <typename T, typename O>
class DeltaChannelDecay {
 public:
  using A = Accumulator<T>;

  /// log_decay [B,T,H,DK] and its gradient (null if not wanted); `differentiable` if there is a
  /// backward.
  DeltaChannelDecay(const ChunkedSizes& sizes, const T* log_decay, T* gradient, bool differentiable)
      : heads_(sizes.heads),
        width_(sizes.key_width),
        keys_(sizes.keys()),
        values_(sizes.values()),
        most_(sizes.rows()),
        log_decay_(log_decay),
        gradient_(gradient),
        g_(most_ * keys_),
        p_(most_ * most_, /*transposes=*/true),
        tree_(most_, keys_, /*readers=*/2, differentiable) {
    if (differentiable) back_.emplace(most_, keys_);
  }

  void enter(const Chunk& chunk, const A* q, const A* k) {
    chunk_ = chunk;
    n_ = chunk.rows();
    load_tile(log_decay_, {heads_, chunk.head, width_}, chunk, A{1}, g_.data());
    tree_.climb(n_, g_.data(), {{{k, /*own=*/false}, {q}}}, k);
  }

  const A* early_q() const { return tree_.early(kQueries); }
  const A* early_k() const { return tree_.early(kKeys); }
  const A* late_k() const { return tree_.late(); }

  void make_scores() {}
  const A* m() const { return tree_.scores(kKeys); }
  const O* p() const { return p_.left(tree_.scores(kQueries), n_, n_); }

  void make_transposed() {
    pack_left_transposed<A>(m(), n_, n_, n_, back_->m.data(), n_);
    back_->p = p_.left_transposed(tree_.scores(kQueries), n_, n_);
  }
  const A* m_transposed() const { return back_->m.data(); }
  const O* p_transposed() const { return back_->p; }

  void scale_state(A* state) const { loops_.scale_rows(state, tree_.all(), keys_, values_, state); }

  bool wants_gradient() const { return gradient_ != nullptr; }

  A* d_m() const { return back_->d_m.data(); }
  A* d_p() const { return back_->d_p.data(); }

  void carry(const A* state, const A* d_state) {
    loops_.row_dots(state, d_state, keys_, values_, back_->d_all.data());
  }

  void backward(A* d_q, A* d_k, A* d_late) {
    const A* g = tree_.descend({d_m(), d_p()}, {d_k, d_q}, d_late, back_->d_all.data());
    table_.add(n_ * keys_, d_late, d_k);
    if (gradient_ == nullptr) return;
    store_tile(g, {heads_, chunk_.head, width_}, chunk_, A{1}, gradient_);
  }

 private:
  static constexpr int64_t kKeys = 0, kQueries = 1;  // readers

  struct Backward {
    Backward(int64_t rows, int64_t keys)
        : m(rows * rows), d_m(rows * rows), d_p(rows * rows), d_all(keys) {}
    Buffer<A> m, d_m, d_p, d_all;
    const O* p = nullptr;
  };

  int64_t heads_, width_, keys_, values_, most_, n_ = 0;
  const T* log_decay_;
  T* gradient_;
  Chunk chunk_{};
  Buffer<A> g_;
  Operand<O, A> p_;
  DecayTree<A, O> tree_;
  std::optional<Backward> back_;
  const DeltaTable<A, O> table_ = delta_tiles<A, O>();
  const ChunkLoops<A> loops_ = chunk_loops<A>();
};

}  // namespace hopmix::kernels
