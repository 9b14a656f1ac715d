#include "hopmix/kernels/glr.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "hopmix/kernels/glr_loops.h"
#include "hopmix/kernels/head_rows.h"
#include "hopmix/kernels/parallel.h"
#include "hopmix/kernels/row_blocks.h"
#include "hopmix/kernels/row_loops.h"

namespace hopmix::kernels {
namespace {

template <typename T>
int64_t entries(const GlrInputs<T>& in) {
  return in.sequences.tokens() * in.heads * in.width;
}

// One head of one sequence, shared by a team.
template <typename T>
class Head {
 public:
  using A = Accumulator<T>;

  Head(const GlrInputs<T>& in, int64_t sequence, int64_t head, int64_t team)
      : in_(in),
        s_(in.sequences.list[sequence]),
        head_(head),
        diag_(plane_offset(s_.batch, in.heads, head, in.sequences.time, s_.start)),
        reads_(plane_offset(s_.batch, in.heads, head, in.reads.nnz, in.reads.first[sequence])),
        plan_(in.rows, s_.length, team),
        slots_(in.rows, s_.length, plan_.block),
        width_(padded(in.width)),
        x_(rows_of(in.x)),
        xy_(slots_.count(), 2 * width_),
        alpha_diag_(plan_.block),
        members_(team) {}

  void forward(T* y, const Member& member) {
    solve(UnstagedRows<T>(rows_of(y), plan_.block), member);
    members_[member.rank()] = {};  // to the thread that took it
  }

  /// Call prepare_backward() first, once.
  void prepare_backward(const T* y, const T* grad_y, const GlrGradients<T>& out) {
    y_ = rows_of(y);
    grad_y_ = StagedRows<T>(rows_of(grad_y), plan_.block);
    out_ = out;
    dx_ = UnstagedRows<T>(rows_of(out.x), plan_.block);
    back_ = PaddedRows<A>(slots_.count(), 2 * width_);
    lambda_ = PaddedRows<A>(plan_.block, width_);
    if (kRoundsOutput<T>) exact_y_ = Buffer<A>(s_.length * in_.width);
  }
  void backward(const Member& member);

 private:
  template <typename X>
  HeadOf<X> rows_of(X* x) const {
    return {x, in_.sequences, s_, in_.heads, head_, in_.width};
  }

  // Coefficients of rows [begin, end).
  void load(int64_t first, int64_t begin, int64_t end, const Slots& slots, GlrReads<A>& own) {
    own.reads.assign(in_.rows, slots, xy_.view().stride, begin, end);
    own.alpha.resize(own.reads.size());
    own.beta.resize(own.reads.size());
    for (int64_t i = begin; i < end; ++i) {
      alpha_diag_[i - first] = static_cast<A>(in_.alpha_diag[diag_ + i]);
      const int64_t from = reads_ + in_.reads.row_ptr[i];
      A *alpha = own.alpha.at(own.reads, i), *beta = own.beta.at(own.reads, i);
      for (int64_t r = 0; r < own.reads.count(i); ++r) {
        alpha[r] = static_cast<A>(in_.alpha[from + r]);
        beta[r] = static_cast<A>(in_.beta[from + r]);
      }
    }
  }

  GlrBlock<A> block_of(int64_t first) const {
    GlrBlock<A> b{};
    b.first = first;
    b.alpha_diag = alpha_diag_.data();
    b.x = xy_.view();
    b.y = {b.x.data + width_, b.x.stride};
    return b;
  }

  template <typename Out>
  void solve(const UnstagedRows<Out>& y, const Member& member);

  // Puts the gradients of rows [begin, end) where they belong; `own` gets them from `rows`.
  void coefficient_gradients(const GlrBlock<A>& b, const Slots& slots, int64_t begin, int64_t end,
                             GlrReads<A>& own) const;

  const GlrInputs<T>& in_;
  Sequence s_;
  int64_t head_, diag_, reads_;  // where its coefficients start
  BlockPlan plan_;
  Slots slots_;
  int64_t width_;  // padded
  HeadOf<const T> x_;
  PaddedRows<A> xy_;  // by slot
  std::vector<A> alpha_diag_;
  std::vector<GlrReads<A>> members_;

  // Of the backward.
  HeadOf<const T> y_;
  StagedRows<T> grad_y_;
  GlrGradients<T> out_;
  UnstagedRows<T> dx_;
  PaddedRows<A> back_;    // by slot: what readers send back to y; dx
  PaddedRows<A> lambda_;  // by row
  Buffer<A> exact_y_;
};

template <typename T>
template <typename Out>
void Head<T>::solve(const UnstagedRows<Out>& y, const Member& member) {
  const auto loops = glr_loops<A>();
  const auto enter = enter_loops<T>();
  const auto [from, to] = member.share(0, width_, kPad);
  Slots slots = slots_;
  const auto [length, block] = plan_;
  for (int64_t first = 0; first < length; first += block) {
    const int64_t last = std::min(first + block, length);
    const auto [begin, end] = member.share(first, last);
    slots.forward(in_.rows, first, last);
    enter.copy({nullptr, begin, end - begin, &slots}, x_, xy_.view());
    load(first, begin, end, slots, members_[member.rank()]);
    member.sync();
    GlrBlock<A> b = block_of(first);
    b.out = y.rows(first);
    for (const GlrReads<A>& part : members_) loops.solve(b, part, slots, from, to);
    y.store(first, first, last, from, to);
    member.sync();
  }
}

template <typename T>
void Head<T>::backward(const Member& member) {
  HeadOf<const A> y;
  if constexpr (kRoundsOutput<T>) {
    const HeadOf<A> exact(exact_y_.data(), in_.width);
    solve(UnstagedRows<A>(exact, plan_.block), member);
    y = {exact_y_.data(), in_.width};
  } else {
    y = y_;
  }
  const auto loops = glr_loops<A>();
  const auto enter = enter_loops<T>();
  const auto enter_y = enter_loops<A>();
  const auto [from, to] = member.share(0, width_, kPad);
  GlrReads<A>& own = members_[member.rank()];
  Slots slots = slots_;
  const auto [length, block] = plan_;
  for (int64_t first = (length - 1) / block * block; first >= 0; first -= block) {
    const int64_t last = std::min(first + block, length);
    const auto [begin, end] = member.share(first, last);
    slots.backward(in_.rows, first, last);
    const auto [enter_from, enter_to] =
        member.share(0, static_cast<int64_t>(slots.entered().size()));
    const Entering entering{slots.entered().data() + enter_from, 0, enter_to - enter_from, &slots};
    GlrBlock<A> b = block_of(first);
    b.later = back_.view();
    b.dx = {b.later.data + width_, b.later.stride};
    b.lambda = {lambda_.view(), first};
    b.want_dx = static_cast<bool>(dx_);
    enter.copy(entering, x_, b.x);
    enter_y.copy(entering, y, b.y);
    enter.zero(entering, 2 * width_, b.later);
    grad_y_.load(first, begin, end);
    b.grad_y = grad_y_.rows(first);
    load(first, begin, end, slots, own);
    member.sync();

    for (size_t part = members_.size(); part-- > 0;) {
      loops.solve_transposed(b, members_[part], slots, from, to);
    }
    if (dx_) {
      const BlockRows<A> dx = dx_.rows(first);
      for (int64_t i = first; i < last; ++i) {
        const A* sum = b.dx[slots.of(i)];
        std::copy(sum + from, sum + to, dx[i] + from);
      }
      dx_.store(first, first, last, from, to);
    }
    member.sync();
    coefficient_gradients(b, slots, begin, end, own);
    member.sync();
  }
  own = {};  // to the thread that took it
}

template <typename T>
void Head<T>::coefficient_gradients(const GlrBlock<A>& b, const Slots& slots, int64_t begin,
                                    int64_t end, GlrReads<A>& own) const {
  const auto rows = row_loops<A>();
  const BlockRows<const A> lambda{{b.lambda.rows.data, b.lambda.rows.stride}, b.first};
  if (out_.alpha_diag) {
    std::vector<A> diagonal(end - begin);
    glr_loops<A>().diagonal_gradients(b, slots, begin, end, width_, diagonal.data());
    for (int64_t i = begin; i < end; ++i) {
      out_.alpha_diag[diag_ + i] = static_cast<T>(diagonal[i - begin]);
    }
  }
  // The coefficients themselves are no longer needed.
  for (const auto& [out, read, gradient] :
       {std::tuple{out_.alpha, b.x.data, &own.alpha}, {out_.beta, b.y.data, &own.beta}}) {
    if (!out) continue;
    rows.dots(own.reads, lambda, read, width_, A{1}, *gradient);
    for (int64_t i = begin; i < end; ++i) {
      const A* values = gradient->at(own.reads, i);
      T* to = out + reads_ + in_.reads.row_ptr[i];
      for (int64_t r = 0; r < own.reads.count(i); ++r) to[r] = static_cast<T>(values[r]);
    }
  }
}

}  // namespace

template <typename T>
void glr(const GlrInputs<T>& in, T* y) {
  parallel_teams(
      in.sequences.count() * in.heads, entries(in), padded(in.width) / kPad,
      [&](int64_t task, int64_t team) {
        return Head<T>(in, task / in.heads, task % in.heads, team);
      },
      [&](int64_t, Head<T>& head, const Member& member) { head.forward(y, member); });
}

template <typename T>
void glr_backward(const GlrInputs<T>& in, const T* y, const T* grad_y, const GlrGradients<T>& out) {
  parallel_teams(
      in.sequences.count() * in.heads, entries(in), padded(in.width) / kPad,
      [&](int64_t task, int64_t team) {
        Head<T> head(in, task / in.heads, task % in.heads, team);
        head.prepare_backward(y, grad_y, out);
        return head;
      },
      [&](int64_t, Head<T>& head, const Member& member) { head.backward(member); });
}

template void glr(const GlrInputs<float>&, float*);
template void glr(const GlrInputs<double>&, double*);
template void glr(const GlrInputs<Bfloat16>&, Bfloat16*);
template void glr_backward(const GlrInputs<float>&, const float*, const float*,
                           const GlrGradients<float>&);
template void glr_backward(const GlrInputs<double>&, const double*, const double*,
                           const GlrGradients<double>&);
template void glr_backward(const GlrInputs<Bfloat16>&, const Bfloat16*, const Bfloat16*,
                           const GlrGradients<Bfloat16>&);

}  // namespace hopmix::kernels
