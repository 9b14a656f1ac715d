// The Rule (chunked_heads.h) of log-linear attention: one state for each bucket of the past.
// README.md, "Many states", has the equations. The parameter Transition defines A, Q, Y and F:
// DecayTransition below, or delta_transition.h.
#pragma once

#include <utility>
#include <vector>

#include "hopmix/kernels/chunked/chunked_heads.h"
#include "hopmix/kernels/chunked/head_decay.h"
#include "hopmix/kernels/chunked/level_scales.h"

namespace hopmix::kernels {

/// S_t = e^{g_t} S_{t-1} + k_t v_t^T: F is a number.
template <typename T, typename O>
class DecayTransition : public HeadDecay<T, O, /*kDecays=*/true> {
 public:
  using Base = HeadDecay<T, O, true>;
  using A = typename Base::A;

  DecayTransition(const ChunkedSizes& sizes, const T* log_decay, T* gradient)
      : Base(sizes, log_decay, gradient),
        state_size_(sizes.state_size()),
        gradient_(gradient != nullptr) {}

  /// S = F S.
  void carry(A* state) const { this->scale_state(state); }

  /// From S and dLoss/d(F S), which becomes dLoss/dS.
  void carry_back(const A* state, A* d_state) {
    A dot = 0;
    if (gradient_) loops_.row_dots(state, d_state, 1, state_size_, &dot);
    carried_ += dot;
    this->scale_state(d_state);
  }

  void backward(A* d_q, A* d_k) { Base::backward(d_q, d_k, std::exchange(carried_, A{0})); }

 private:
  int64_t state_size_;
  bool gradient_;
  A carried_ = 0;
  const ChunkLoops<A> loops_ = chunk_loops<A>();
};

template <typename T, typename O, typename Transition>
class LogLinear {
 public:
  using A = Accumulator<T>;
  static constexpr bool kOwnStates = true;

  LogLinear(const ChunkedSizes& sizes, Transition transition, LevelScales<T> scales)
      : keys_(sizes.keys()),
        values_(sizes.values()),
        transition_(std::move(transition)),
        scales_(std::move(scales)),
        weights_(sizes.rows() * sizes.rows()),
        scaled_(sizes.rows() * keys_),
        from_state_(sizes.rows() * keys_),
        square_(sizes.rows() * sizes.rows()),
        q_(sizes.rows() * keys_, /*transposes=*/true),
        k_(sizes.rows() * keys_, /*transposes=*/true),
        v_(sizes.rows() * values_),
        v_left_(sizes.rows() * values_),
        d_o_(sizes.rows() * values_),
        d_o_left_(sizes.rows() * values_),
        d_o_columns_(sizes.rows() * values_, /*transposes=*/true),
        state_(sizes.state_size(), /*transposes=*/true) {}

  void forward(const Chunk& chunk, const ChunkTiles<A>& tiles, A*) {
    const int64_t n = chunk.rows();
    enter(chunk, tiles);
    const O* v = v_.right(tiles.v, n, values_);
    Visible::apply(n, values_, factored_weights(/*transposed=*/false), v, false, tiles.o,
                   /*add=*/false);
    for_buckets(index_, [&](int64_t bit) {
      multiply<O>(n, values_, keys_, q_.left(factored_q(bit), n, keys_), keys_,
                  state_.right(states_[bit].data(), keys_, values_), values_, tiles.o, values_,
                  /*add=*/true);
    });
    if (!chunk.last) advance_states(v);
    release_gemm();
  }

  void advance(const Chunk& chunk, const ChunkTiles<A>& tiles, A*) {
    n_ = chunk.rows();
    transition_.enter(chunk, nullptr, tiles.k);
    for_buckets(index_, [&](int64_t bit) {
      kept_.emplace_back(keys_ * values_);
      std::copy_n(states_[bit].data(), keys_ * values_, kept_.back().data());
    });
    advance_states(v_.right(tiles.v, n_, values_));
    release_gemm();
  }

  void backward(const Chunk& chunk, const ChunkTiles<A>& tiles, const A*,
                const ChunkGradients<A>& d, A*) {
    const int64_t n = chunk.rows();
    if (!chunk.last) restore_states();
    enter(chunk, tiles);
    const A* after = chunk.last ? nullptr : d_states_[fenwick_completes(index_)].data();
    const A* weights = transition_.scores(/*transposed=*/true);
    const O* d_o = d_o_.right(d.o, n, values_);
    if (d.v != nullptr) {
      factor(weights, /*transposed=*/true, weights_.data());
      Visible::apply(n, values_, square_.left(weights_.data(), n, n), d_o, true, d.v, false);
      if (after != nullptr) {
        multiply<O>(n, values_, keys_, k_.left(transition_.k(), n, keys_), keys_,
                    state_.right(after, keys_, values_), values_, d.v, values_, true);
      }
    }
    A *const d_q = transition_.d_q(d), *const d_k = transition_.d_k(d);
    if (d_q != nullptr || scales_.wants_gradient()) read_back(d.o, d_q);
    if (d_k != nullptr) {
      if (after == nullptr) {
        std::fill_n(d_k, n * keys_, A{0});
      } else {
        multiply<O>(n, keys_, values_, v_left_.left(tiles.v, n, values_), values_,
                    state_.right_transposed(after, keys_, values_), keys_, d_k, keys_, false);
      }
    }
    if (d_q != nullptr || d_k != nullptr || scales_.wants_gradient()) {
      A* d_weights = transition_.d_weights();
      Visible::make(n, values_, v_left_.left(tiles.v, n, values_),
                    d_o_columns_.right_transposed(d.o, n, values_), true, d_weights);
      if (scales_.wants_gradient()) {
        scales_.add_gradient(weights, d_weights);
        scales_.store_gradient();
      }
      factor(d_weights, true, d_weights);
    }
    states_back(chunk, after, d_o);
    if (d_q != nullptr || d_k != nullptr) transition_.backward(d_q, d_k);
    release_gemm();
  }

 private:
  using Visible = VisibleProducts<O>;
  using States = std::vector<Buffer<A>>;

  void enter(const Chunk& chunk, const ChunkTiles<A>& tiles) {
    n_ = chunk.rows();
    transition_.enter(chunk, tiles.q, tiles.k);
    scales_.enter(chunk);
  }

  /// to = f o x; 0 where a query does not see the key.
  void factor(const A* x, bool transposed, A* to) const {
    loops_.mask(x, scales_.tile(transposed), n_, transposed, to);
  }
  const O* factored_weights(bool transposed) const {
    factor(transition_.scores(transposed), transposed, weights_.data());
    return square_.left(weights_.data(), n_, n_);
  }

  /// diag(f_l) Q of the bucket of this bit.
  const A* factored_q(int64_t bit) const {
    loops_.scale_rows(transition_.q(), scales_.level(LevelScales<T>::kInside + bit), n_, keys_,
                      scaled_.data());
    return scaled_.data();
  }

  static void grow(States& states, int64_t count, int64_t size) {
    while (static_cast<int64_t>(states.size()) < count) states.emplace_back(size);
  }

  static void add(int64_t size, const A* x, A* y) {
#pragma omp simd
    for (int64_t c = 0; c < size; ++c) y[c] += x[c];
  }

  void advance_states(const O* v) {
    const int64_t size = keys_ * values_, made = fenwick_completes(index_);
    grow(states_, made + 1, size);
    A* const to = states_[made].data();
    multiply<O>(keys_, values_, n_, k_.left_transposed(transition_.k(), n_, keys_), n_, v, values_,
                to, values_, /*add=*/false);
    for_buckets(index_, [&](int64_t bit) {
      transition_.carry(states_[bit].data());
      if (bit < made) add(size, states_[bit].data(), to);
    });
    ++index_;
  }

  /// The states before the previous chunk.
  void restore_states() {
    --index_;
    for (int64_t bit = std::bit_width(static_cast<uint64_t>(index_)) - 1; bit >= 0; --bit) {
      if ((index_ >> bit & 1) == 0) continue;
      states_[bit] = std::move(kept_.back());
      kept_.pop_back();
    }
  }

  /// The gradients of reading the states: dQ, if wanted, and those of the factors.
  void read_back(const A* d_o, A* d_q) {
    const O* left = d_o_left_.left(d_o, n_, values_);
    A* const x = from_state_.data();
    if (d_q != nullptr) std::fill_n(d_q, n_ * keys_, A{0});
    for_buckets(index_, [&](int64_t bit) {
      const int64_t level = LevelScales<T>::kInside + bit;
      multiply<O>(n_, keys_, values_, left, values_,
                  state_.right_transposed(states_[bit].data(), keys_, values_), keys_, x, keys_,
                  false);
      if (scales_.wants_gradient()) {
        loops_.row_dots(transition_.q(), x, n_, keys_, scales_.d_level(level));
      }
      if (d_q == nullptr) return;
      loops_.scale_rows(x, scales_.level(level), n_, keys_, x);
      add(n_ * keys_, x, d_q);
    });
  }

  /// Turns the gradients of the states after the chunk, `after` for its own bucket, into those of
  /// the states before it.
  void states_back(const Chunk& chunk, const A* after, const O* d_o) {
    const int64_t size = keys_ * values_, made = fenwick_completes(index_);
    for_buckets(index_, [&](int64_t bit) {
      grow(d_states_, bit + 1, size);
      A* const to = d_states_[bit].data();
      if (chunk.last) {
        std::fill_n(to, size, A{0});
      } else {
        if (bit < made) std::copy_n(after, size, to);
        transition_.carry_back(states_[bit].data(), to);
      }
      multiply<O>(keys_, values_, n_, q_.left_transposed(factored_q(bit), n_, keys_), n_, d_o,
                  values_, to, values_, true);
    });
  }

  int64_t keys_, values_, n_ = 0;
  int64_t index_ = 0;  // of the chunk
  Transition transition_;
  LevelScales<T> scales_;
  States states_, d_states_;  // by bit; those of the bits of index_ live
  States kept_;               // before each chunk, for backward
  Buffer<A> weights_, scaled_, from_state_;
  Operand<O, A> square_, q_, k_, v_, v_left_, d_o_, d_o_left_, d_o_columns_, state_;
  const ChunkLoops<A> loops_ = chunk_loops<A>();
};

}  // namespace hopmix::kernels
