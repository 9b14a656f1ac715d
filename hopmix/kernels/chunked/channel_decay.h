// Decay of the state of OuterProducts (outer_products.h) by one number per token and key channel.
#pragma once

#include "hopmix/kernels/chunked/decay_tree.h"

namespace hopmix::kernels {

template <typename T, typename O>
class ChannelDecay {
 public:
  using A = Accumulator<T>;
  static constexpr bool kUsed = true;

  /// log_decay [B,T,H,DK] and its gradient (null if not wanted); `differentiable` if that gradient
  /// or those of q or k are wanted.
  ChannelDecay(const ChunkedSizes& sizes, const T* log_decay, T* gradient, bool differentiable)
      : heads_(sizes.heads),
        width_(sizes.key_width),
        keys_(sizes.keys()),
        values_(sizes.values()),
        log_decay_(log_decay),
        gradient_(gradient),
        keep_(differentiable),
        g_(sizes.rows() * keys_),
        d_a_(keep_ ? sizes.rows() * sizes.rows() : 0),
        d_all_(keys_),
        spare_q_(keep_ ? sizes.rows() * keys_ : 0),
        spare_k_(keep_ ? sizes.rows() * keys_ : 0),
        weights_(sizes.rows() * sizes.rows(), /*transposes=*/true),
        tree_(sizes.rows(), keys_, /*readers=*/1, keep_) {}

  void enter(const Chunk& chunk, const A* q, const A* k) {
    chunk_ = chunk;
    n_ = chunk.rows();
    load_tile(log_decay_, {heads_, chunk.head, width_}, chunk, A{1}, g_.data());
    tree_.climb(n_, g_.data(), {{{q}}}, k);
  }

  /// P q and R k of the whole chunk.
  const A* q() const { return tree_.early(0); }
  const A* k() const { return tree_.late(); }

  /// A [n, n] as a left factor; 0 where the query does not see the key.
  const O* weights() const { return weights_.left(tree_.scores(0), n_, n_); }
  const O* weights_transposed() const { return weights_.left_transposed(tree_.scores(0), n_, n_); }

  /// The gradients of A^T, P q and R k are stored here; null if not wanted.
  A* d_weights() const { return d_a_.data(); }
  A* d_q(const ChunkGradients<A>& d) const { return keep_ && !d.q ? spare_q_.data() : d.q; }
  A* d_k(const ChunkGradients<A>& d) const { return keep_ && !d.k ? spare_k_.data() : d.k; }

  /// From these, computes the gradients of q and k, in place, and of the log decays.
  void backward(A* d_q, A* d_k, const A* state, const A* d_state) {
    loops_.row_dots(state, d_state, keys_, values_, d_all_.data());
    const A* g = tree_.descend({d_a_.data()}, {d_q}, d_k, d_all_.data());
    if (gradient_ == nullptr) return;
    store_tile(g, {heads_, chunk_.head, width_}, chunk_, A{1}, gradient_);
  }

  /// S = D S.
  void scale_state(A* state) const { loops_.scale_rows(state, tree_.all(), keys_, values_, state); }

 private:
  int64_t heads_, width_, keys_, values_, n_ = 0;
  const T* log_decay_;
  T* gradient_;
  bool keep_;  // what backward() needs
  Chunk chunk_{};
  Buffer<A> g_, d_a_, d_all_, spare_q_, spare_k_;
  Operand<O, A> weights_;
  DecayTree<A, O> tree_;
  const ChunkLoops<A> loops_ = chunk_loops<A>();
};

}  // namespace hopmix::kernels
