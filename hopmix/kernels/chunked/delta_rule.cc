#include "hopmix/kernels/chunked/delta_rule.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "hopmix/kernels/chunked/delta_channel_decay.h"
#include "hopmix/kernels/chunked/delta_chunk.h"
#include "hopmix/kernels/chunked/delta_head_decay.h"

namespace hopmix::kernels {
namespace {

/// The rule (chunked_heads.h) that delta_chunk.h describes.
template <typename T, typename O, typename Decay>
class DeltaRule {
 public:
  using A = Accumulator<T>;

  DeltaRule(const ChunkedSizes& sizes, Decay decay, const T* beta, T* d_beta)
      : keys_(sizes.keys()),
        values_(sizes.values()),
        most_(sizes.rows()),
        delta_(sizes, values_, std::move(decay), beta, d_beta),
        w_(most_ * values_),
        u_(most_ * values_),
        left_(most_ * std::max(keys_, values_), /*transposes=*/true),
        right_(most_ * values_, /*transposes=*/true),
        other_right_(most_ * values_, /*transposes=*/true),
        state_(sizes.state_size(), /*transposes=*/true) {}

  void forward(const Chunk& chunk, const ChunkTiles<A>& tiles, A* state) {
    const int64_t n = chunk.rows();
    delta_.enter(chunk, tiles.q, tiles.k);
    const Decay& decay = delta_.decay();
    const O* s = state_.right(state, keys_, values_);
    multiply<O>(n, values_, keys_, left_.left(decay.early_q(), n, keys_), keys_, s, values_,
                tiles.o, values_, false);
    solve(n, tiles.v, s, /*errors=*/false);
    const O* u = right_.right(u_.data(), n, values_);
    VisibleProducts<O>::apply(n, values_, decay.p(), u, false, tiles.o, true);
    advance_state(n, u, state);
    release_gemm();
  }

  void advance(const Chunk& chunk, const ChunkTiles<A>& tiles, A* state) {
    const int64_t n = chunk.rows();
    delta_.enter(chunk, nullptr, tiles.k);
    solve(n, tiles.v, state_.right(state, keys_, values_), /*errors=*/true);
    advance_state(n, right_.right(u_.data(), n, values_), state);
    kept_.push_back({chunk.token, chunk.head, Memory(n * values_)});
    std::copy_n(w_.data(), n * values_, kept_.back().w.data());
    release_gemm();
  }

  void backward(const Chunk& chunk, const ChunkTiles<A>& tiles, const A* state,
                const ChunkGradients<A>& d, A* d_state) {
    const int64_t n = chunk.rows();
    if (!back_) back_.emplace(most_, keys_, values_);
    delta_.enter(chunk, tiles.q, tiles.k);
    Decay& decay = delta_.decay();
    find_errors(chunk, tiles.v, state);
    decay.make_transposed();
    A *x = back_->x.data(), *h = back_->h.data();
    multiply<O>(n, values_, keys_, left_.left(decay.late_k(), n, keys_), keys_,
                state_.right(d_state, keys_, values_), values_, x, values_, false);
    const O* d_o = right_.right(d.o, n, values_);
    VisibleProducts<O>::apply(n, values_, decay.p_transposed(), d_o, true, x, true);
    delta_.solve_backward(values_, x, h);
    if (d.v != nullptr) loops_.scale_rows(x, delta_.beta(), n, values_, d.v);
    delta_.store_gradient(values_, x, w_.data());
    if (d.q != nullptr || d.k != nullptr || decay.wants_gradient()) {
      keys_backward(n, state, d, d_state);
    }
    decay.scale_state(d_state);
    multiply<O>(keys_, values_, n, left_.left_transposed(decay.early_k(), n, keys_), n,
                right_.right(h, n, values_), values_, d_state, values_, true);
    multiply<O>(keys_, values_, n, left_.left_transposed(decay.early_q(), n, keys_), n,
                right_.right(d.o, n, values_), values_, d_state, values_, true);
    release_gemm();
  }

 private:
  using Memory = Buffer<A>;

  // What the backward needs beyond.
  struct Backward {
    Backward(int64_t rows, int64_t keys, int64_t values)
        : x(rows * values),
          h(rows * values),
          d_q(rows * keys),
          d_k(rows * keys),
          d_late(rows * keys) {}
    Memory x, h, d_q, d_k, d_late;
  };

  // W of a chunk, from the walk that found the states.
  struct Errors {
    int64_t token, head;
    Memory w;
  };

  /// U and, if asked for, W; `state` is a right factor.
  void solve(int64_t n, const A* v, const O* state, bool errors) {
    Decay& decay = delta_.decay();
    decay.make_scores();
    A* const mix = delta_.mix();
    multiply<O>(n, values_, keys_, left_.left(decay.early_k(), n, keys_), keys_, state, values_,
                mix, values_, false);
    table_.errors(n, values_, delta_.beta(), v, mix, w_.data(), u_.data());
    delta_.solve(values_, u_.data(), errors ? w_.data() : nullptr);
  }

  /// W and U again: kept, but for the last chunk, whose W the walk over the states did not need.
  void find_errors(const Chunk& chunk, const A* v, const A* state) {
    const int64_t n = chunk.rows();
    const bool kept =
        !kept_.empty() && kept_.back().token == chunk.token && kept_.back().head == chunk.head;
    if (!kept) {
      solve(n, v, state_.right(state, keys_, values_), /*errors=*/true);
      return;
    }
    w_ = std::move(kept_.back().w);
    kept_.pop_back();
    loops_.scale_rows(w_.data(), delta_.beta(), n, values_, u_.data());
  }

  /// `state` becomes that after the chunk; u is a right factor.
  void advance_state(int64_t n, const O* u, A* state) {
    const Decay& decay = delta_.decay();
    decay.scale_state(state);
    multiply<O>(keys_, values_, n, left_.left_transposed(decay.late_k(), n, keys_), n, u, values_,
                state, values_, true);
  }

  /// The gradients of q, k and the log decays.
  void keys_backward(int64_t n, const A* state, const ChunkGradients<A>& d, const A* d_state) {
    const A* h = back_->h.data();
    A* const d_q = d.q != nullptr ? d.q : back_->d_q.data();
    A* const d_k = d.k != nullptr ? d.k : back_->d_k.data();
    A* const d_late = back_->d_late.data();
    delta_.scores_backward(values_, u_.data(), right_.right_transposed(h, n, values_),
                           other_right_.right_transposed(d.o, n, values_));
    const O* s = state_.right_transposed(state, keys_, values_);
    multiply<O>(n, keys_, values_, left_.left(d.o, n, values_), values_, s, keys_, d_q, keys_,
                false);
    multiply<O>(n, keys_, values_, left_.left(h, n, values_), values_, s, keys_, d_k, keys_, false);
    multiply<O>(n, keys_, values_, left_.left(u_.data(), n, values_), values_,
                state_.right_transposed(d_state, keys_, values_), keys_, d_late, keys_, false);
    delta_.decay().carry(state, d_state);
    delta_.decay().backward(d_q, d_k, d_late);
  }

  int64_t keys_, values_, most_;
  DeltaChunk<T, O, Decay> delta_;
  Memory w_, u_;
  Operand<O, A> left_, right_, other_right_, state_;
  std::optional<Backward> back_;
  std::vector<Errors> kept_;
  const DeltaTable<A, O> table_ = delta_tiles<A, O>();
  const ChunkLoops<A> loops_ = chunk_loops<A>();
};

/// Calls f(make) with make() giving the Rule of these inputs.
template <typename T, typename F>
void with_rule(const MatrixStateInputs<T>& in, const MatrixStateGradients<T>& out,
               bool differentiable, const F& f) {
  with_operands<T>([&]<typename O>() {
    const ChunkedSizes sizes(in);
    if (in.channels) {
      using Decay = DeltaChannelDecay<T, O>;
      f([&] {
        return DeltaRule<T, O, Decay>(sizes, {sizes, in.log_decay, out.log_decay, differentiable},
                                      in.beta, out.beta);
      });
    } else {
      using Decay = DeltaHeadDecay<T, O>;
      f([&] {
        return DeltaRule<T, O, Decay>(sizes, {sizes, in.log_decay, out.log_decay}, in.beta,
                                      out.beta);
      });
    }
  });
}

}  // namespace

template <typename T>
void delta_rule(const MatrixStateInputs<T>& in, T* o, Accumulator<T>* state) {
  step_single_tokens(in, o, state);
  with_rule<T>(in, {}, /*differentiable=*/false,
               [&](const auto& make) { chunked_forward(in, make, o, state); });
}

template <typename T>
void delta_rule_backward(const MatrixStateInputs<T>& in, const T* grad_o,
                         const Accumulator<T>* grad_state, const MatrixStateGradients<T>& out) {
  with_rule<T>(in, out, /*differentiable=*/true,
               [&](const auto& make) { chunked_backward(in, make, grad_o, grad_state, out); });
}

template void delta_rule(const MatrixStateInputs<float>&, float*, float*);
template void delta_rule(const MatrixStateInputs<double>&, double*, double*);
template void delta_rule(const MatrixStateInputs<Bfloat16>&, Bfloat16*, float*);
template void delta_rule_backward(const MatrixStateInputs<float>&, const float*, const float*,
                                  const MatrixStateGradients<float>&);
template void delta_rule_backward(const MatrixStateInputs<double>&, const double*, const double*,
                                  const MatrixStateGradients<double>&);
template void delta_rule_backward(const MatrixStateInputs<Bfloat16>&, const Bfloat16*, const float*,
                                  const MatrixStateGradients<Bfloat16>&);

}  // namespace hopmix::kernels
