// The Rule (chunked_heads.h) of S_t = decay_t S_{t-1} + k_t v_t^T, o_t = q_t S_t; README.md has the
// equations. The parameter Decay, head_decay.h or channel_decay.h, defines the decay and the
// products A of queries and keys.
#pragma once

#include "hopmix/kernels/chunked/chunked_heads.h"

namespace hopmix::kernels {

template <typename T, typename O, typename Decay>
class OuterProducts {
 public:
  using A = Accumulator<T>;

  OuterProducts(const ChunkedSizes& sizes, Decay decay)
      : keys_(sizes.keys()),
        values_(sizes.values()),
        decay_(std::move(decay)),
        q_(sizes.rows() * keys_, /*transposes=*/true),
        k_(sizes.rows() * keys_, /*transposes=*/true),
        v_(sizes.rows() * values_),
        v_left_(sizes.rows() * values_),
        d_o_(sizes.rows() * values_),
        d_o_left_(sizes.rows() * values_),
        d_o_columns_(sizes.rows() * values_, /*transposes=*/true),
        state_(sizes.state_size(), /*transposes=*/true) {}

  void forward(const Chunk& chunk, const ChunkTiles<A>& tiles, A* state) {
    const int64_t n = chunk.rows();
    decay_.enter(chunk, tiles.q, tiles.k);
    const O* v = v_.right(tiles.v, n, values_);
    multiply<O>(n, values_, keys_, q_.left(decay_.q(), n, keys_), keys_,
                state_.right(state, keys_, values_), values_, tiles.o, values_,
                /*add=*/false);
    Visible::apply(n, values_, decay_.weights(), v, /*transposed=*/false, tiles.o, /*add=*/true);
    advance_state(n, v, state);
    release_gemm();
  }

  void advance(const Chunk& chunk, const ChunkTiles<A>& tiles, A* state) {
    decay_.enter(chunk, nullptr, tiles.k);
    advance_state(chunk.rows(), v_.right(tiles.v, chunk.rows(), values_), state);
    release_gemm();
  }

  void backward(const Chunk& chunk, const ChunkTiles<A>& tiles, const A* state,
                const ChunkGradients<A>& d, A* d_state) {
    const int64_t n = chunk.rows();
    decay_.enter(chunk, tiles.q, tiles.k);
    const O* d_o = d_o_.right(d.o, n, values_);
    const O* weights = d.v || Decay::kUsed ? decay_.weights_transposed() : nullptr;
    if (d.v != nullptr) {
      multiply<O>(n, values_, keys_, k_.left(decay_.k(), n, keys_), keys_,
                  state_.right(d_state, keys_, values_), values_, d.v, values_, false);
      Visible::apply(n, values_, weights, d_o, true, d.v, true);
    }
    A *const d_q = decay_.d_q(d), *const d_k = decay_.d_k(d);
    const O* v = d_q == nullptr && d_k == nullptr ? nullptr : v_left_.left(tiles.v, n, values_);
    if (d_q != nullptr) {
      multiply<O>(n, keys_, values_, d_o_left_.left(d.o, n, values_), values_,
                  state_.right_transposed(state, keys_, values_), keys_, d_q, keys_, false);
    }
    if (d_k != nullptr) {
      multiply<O>(n, keys_, values_, v, values_, state_.right_transposed(d_state, keys_, values_),
                  keys_, d_k, keys_, false);
    }
    if (v != nullptr) {
      // Rows of the gradient of A are keys, so that v need not be transposed.
      Visible::make(n, values_, v, d_o_columns_.right_transposed(d.o, n, values_), true,
                    decay_.d_weights());
      decay_.backward(d_q, d_k, state, d_state);
    }
    decay_.scale_state(d_state);
    multiply<O>(keys_, values_, n, q_.left_transposed(decay_.q(), n, keys_), n, d_o, values_,
                d_state, values_, true);
    release_gemm();
  }

 private:
  using Visible = VisibleProducts<O>;

  void advance_state(int64_t n, const O* v, A* state) {
    decay_.scale_state(state);
    multiply<O>(keys_, values_, n, k_.left_transposed(decay_.k(), n, keys_), n, v, values_, state,
                values_, true);
  }

  int64_t keys_, values_;
  Decay decay_;
  Operand<O, A> q_, k_, v_, v_left_, d_o_, d_o_left_, d_o_columns_, state_;
};

}  // namespace hopmix::kernels
