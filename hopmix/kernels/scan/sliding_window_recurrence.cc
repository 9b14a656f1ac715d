#include "hopmix/kernels/scan/sliding_window_recurrence.h"

#include <algorithm>

#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/scan/linear_recurrence.h"

namespace hopmix::kernels {
namespace {

// Every sequence cut at block edges, and the linear recurrence on the pieces: once from zero, which
// says what each hands to the next, then from what it was handed.
template <typename T>
class Pieces {
 public:
  using A = Accumulator<T>;

  explicit Pieces(const SlidingWindowInputs<T>& in)
      : in_(in), cut_(in.start % in.block != 0), all_{in.sequences.batch, in.sequences.time, {}} {
    for (const Sequence& s : in.sequences.list) {
      first_.push_back(all_.count());
      int64_t length = in.block - in.start % in.block;
      for (int64_t at = 0; at < s.length; at += length, length = in.block) {
        length = std::min(length, s.length - at);
        all_.list.push_back({s.batch, s.start + at, length});
      }
    }
    first_.push_back(all_.count());
    own_initial_ = zeros();
    initial_ = zeros();
    own_last_ = zeros();
    if (in.initial_state == nullptr) return;
    for (int64_t n = 0; n < in.sequences.count(); ++n) {
      if (first_[n] == first_[n + 1]) continue;
      // In the middle of a block both recurrences go on; at its edge the older one ends.
      if (cut_) copy(state(in.initial_state, n, 1), at(own_initial_, first_[n]));
      copy(state(in.initial_state, n, cut_ ? 0 : 1), at(initial_, first_[n]));
    }
  }

  const Sequences& all() const { return all_; }

  /// The recurrence begun at each piece; its outputs [B, T, E] go to `own`.
  void run_own(T* own) {
    linear_recurrence<T>(inputs(own_initial_), own, own_last_.data());
    for (int64_t n = 0; n < in_.sequences.count(); ++n) {
      for (int64_t k = first_[n] + 1; k < first_[n + 1]; ++k) {
        copy(at(own_last_, k - 1), at(initial_, k));
      }
    }
  }

  /// After run_own().
  void run(T* y, A* out_state) const {
    const Buffer<A> last = zeros();
    linear_recurrence<T>(inputs(initial_), y, last.data());
    for (int64_t n = 0; n < in_.sequences.count(); ++n) {
      for (const int64_t which : {0, 1}) {
        A* to = state(out_state, n, which);
        if (first_[n] < first_[n + 1]) {
          copy(at(which == 0 ? last : own_last_, first_[n + 1] - 1), to);
        } else if (in_.initial_state) {
          copy(state(in_.initial_state, n, which), to);
        } else {
          std::fill_n(to, in_.width, A{0});
        }
      }
    }
  }

  /// Back through both; `own` is what run_own() wrote.
  void backward(const T* own, const T* y, const T* grad_y, const A* grad_state,
                const SlidingWindowGradients<T>& out) const {
    const Buffer<A> grad_last = zeros(), grad_own = zeros();
    const Buffer<A> grad_initial = zeros(), grad_own_initial = zeros();
    for (int64_t n = 0; grad_state && n < in_.sequences.count(); ++n) {
      if (first_[n] == first_[n + 1]) continue;
      copy(state(grad_state, n, 0), at(grad_last, first_[n + 1] - 1));
      copy(state(grad_state, n, 1), at(grad_own, first_[n + 1] - 1));
    }
    linear_recurrence_backward<T>(inputs(initial_), y, grad_y, grad_last.data(),
                                  {out.a, out.x, grad_initial.data()});
    for (int64_t n = 0; n < in_.sequences.count(); ++n) {
      for (int64_t k = first_[n] + 1; k < first_[n + 1]; ++k) {
        add(at(grad_initial, k), in_.width, at(grad_own, k - 1));
      }
    }
    const int64_t entries = in_.sequences.tokens() * in_.width;
    const Buffer<T> more_a(out.a ? entries : 0), more_x(out.x ? entries : 0);
    linear_recurrence_backward<T>(inputs(own_initial_), own, nullptr, grad_own.data(),
                                  {out.a ? more_a.data() : nullptr, out.x ? more_x.data() : nullptr,
                                   grad_own_initial.data()});
    if (out.a) add(more_a.data(), entries, out.a);
    if (out.x) add(more_x.data(), entries, out.x);
    if (out.initial_state) initial_gradients(grad_state, grad_initial, grad_own_initial, out);
  }

 private:
  Buffer<A> zeros() const {
    Buffer<A> out(all_.count() * in_.width);
    std::fill_n(out.data(), all_.count() * in_.width, A{0});
    return out;
  }
  A* at(const Buffer<A>& all, int64_t piece) const { return all.data() + piece * in_.width; }
  template <typename P>
  P* state(P* all, int64_t n, int64_t which) const {
    return all + (2 * n + which) * in_.width;
  }
  void copy(const A* from, A* to) const { std::copy_n(from, in_.width, to); }
  static void add(const T* from, int64_t count, T* to) requires(!kRoundsOutput<T>) {
    for (int64_t i = 0; i < count; ++i) to[i] += from[i];
  }
  LinearRecurrenceInputs<T> inputs(const Buffer<A>& initial) const {
    return {in_.a, in_.x, initial.data(), in_.width, all_};
  }

  void initial_gradients(const A* grad_state, const Buffer<A>& grad_initial,
                         const Buffer<A>& grad_own_initial,
                         const SlidingWindowGradients<T>& out) const {
    for (int64_t n = 0; n < in_.sequences.count(); ++n) {
      A *const older = state(out.initial_state, n, 0), *const own = state(out.initial_state, n, 1);
      std::fill_n(older, 2 * in_.width, A{0});
      if (first_[n] < first_[n + 1]) {
        copy(at(grad_initial, first_[n]), cut_ ? older : own);
        if (cut_) copy(at(grad_own_initial, first_[n]), own);
      } else if (grad_state) {
        copy(state(grad_state, n, 0), older);
        copy(state(grad_state, n, 1), own);
      }
    }
  }

  const SlidingWindowInputs<T>& in_;
  bool cut_;  // the first token is not the first of its block
  Sequences all_;
  std::vector<int64_t> first_;  // the pieces of sequence n begin here
  Buffer<A> own_initial_, initial_, own_last_;
};

}  // namespace

template <typename T>
void sliding_window_recurrence(const SlidingWindowInputs<T>& in, T* y, Accumulator<T>* state) {
  Pieces<T> pieces(in);
  const Buffer<T> own(in.sequences.tokens() * in.width);
  pieces.run_own(own.data());
  pieces.run(y, state);
}

template <typename T>
void sliding_window_recurrence_backward(const SlidingWindowInputs<T>& in, const T* y,
                                        const T* grad_y, const Accumulator<T>* grad_state,
                                        const SlidingWindowGradients<T>& out) {
  const int64_t entries = in.sequences.tokens() * in.width;
  if constexpr (kRoundsOutput<T>) {
    // Each gradient is a sum of two, of which neither should be rounded before.
    using A = Accumulator<T>;
    const auto widen = [&](const T* from) {
      Buffer<A> to(from ? entries : 0);
      for (int64_t i = 0; from && i < entries; ++i) to.data()[i] = static_cast<A>(from[i]);
      return to;
    };
    const Buffer<A> a = widen(in.a), x = widen(in.x), grad = widen(grad_y);
    const Buffer<A> exact(entries), state(2 * in.sequences.count() * in.width);
    const Buffer<A> da(out.a ? entries : 0), dx(out.x ? entries : 0);
    const SlidingWindowInputs<A> wide{a.data(), x.data(), in.initial_state, in.width,
                                      in.block, in.start, in.sequences};
    sliding_window_recurrence<A>(wide, exact.data(), state.data());
    sliding_window_recurrence_backward<A>(wide, exact.data(), grad_y ? grad.data() : nullptr,
                                          grad_state, {da.data(), dx.data(), out.initial_state});
    for (int64_t i = 0; out.a && i < entries; ++i) out.a[i] = static_cast<T>(da.data()[i]);
    for (int64_t i = 0; out.x && i < entries; ++i) out.x[i] = static_cast<T>(dx.data()[i]);
  } else {
    Pieces<T> pieces(in);
    const Buffer<T> own(entries);
    pieces.run_own(own.data());
    pieces.backward(own.data(), y, grad_y, grad_state, out);
  }
}

template void sliding_window_recurrence(const SlidingWindowInputs<float>&, float*, float*);
template void sliding_window_recurrence(const SlidingWindowInputs<double>&, double*, double*);
template void sliding_window_recurrence(const SlidingWindowInputs<Bfloat16>&, Bfloat16*, float*);
template void sliding_window_recurrence_backward(const SlidingWindowInputs<float>&, const float*,
                                                 const float*, const float*,
                                                 const SlidingWindowGradients<float>&);
template void sliding_window_recurrence_backward(const SlidingWindowInputs<double>&, const double*,
                                                 const double*, const double*,
                                                 const SlidingWindowGradients<double>&);
template void sliding_window_recurrence_backward(const SlidingWindowInputs<Bfloat16>&,
                                                 const Bfloat16*, const Bfloat16*, const float*,
                                                 const SlidingWindowGradients<Bfloat16>&);

}  // namespace hopmix::kernels
