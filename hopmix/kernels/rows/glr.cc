#include "hopmix/kernels/rows/glr.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "hopmix/kernels/rows/entering.h"
#include "hopmix/kernels/rows/glr_loops.h"
#include "hopmix/kernels/rows/head_rows.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/rows/pipeline.h"
#include "hopmix/kernels/rows/row_blocks.h"
#include "hopmix/kernels/rows/row_loops.h"
#include "hopmix/kernels/rows/slot_rows.h"

namespace hopmix::kernels {
namespace {

template <typename T>
int64_t entries(const GlrInputs<T>& in) {
  return in.sequences.tokens() * in.heads * in.width;
}

// Members of a team: one crew hands the other a row of sums a token, and with few reads a row that
// takes longer than to make it where cores are far apart.
template <typename T>
int64_t most_members(const GlrInputs<T>& in) {
  constexpr int64_t kWorthCrews = 1 << 23;
  return in.reads.nnz * in.width >= kWorthCrews ? padded(in.width) / kPad : 1;
}

// One head of one sequence, shared by a team. The crew of the keys has what belongs to x, with
// alpha; that of the states has y, with beta.
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
        crews_(in.rows, team),
        plan_(in.rows, s_.length, team, /*heads=*/1, crews_.apart),
        slots_(in.rows, s_.length, plan_.block),
        width_(padded(in.width)),
        x_(rows_of(in.x), slots_, width_),
        in_work_(crews_) {
    for (int64_t n = 0; n < crews_.in_work; ++n) {
      alpha_diag_.emplace_back(plan_.block);
      row_sums_.emplace_back(plan_.block, width_);
    }
  }

  /// Call prepare_forward() first, once.
  void prepare_forward() { y_by_slot_ = PaddedRows<A>(slots_.count(), width_); }
  void forward(T* y, const Member& team) {
    solve(UnstagedRows<T>(rows_of(y), plan_.block), team);
    in_work_.give_back(team);
  }

  /// Call prepare_backward() first, once.
  void prepare_backward(const T* y, const T* grad_y, const GlrGradients<T>& out) {
    for (int64_t n = 0; n < crews_.in_work; ++n) {
      grad_y_.emplace_back(rows_of(grad_y), plan_.block);
    }
    out_ = out;
    dx_ = UnstagedRows<T>(rows_of(out.x), plan_.block);
    later_ = PaddedRows<A>(slots_.count(), width_);
    dx_by_slot_ = PaddedRows<A>(dx_ ? slots_.count() : 0, width_);
    if constexpr (kRoundsOutput<T>) {
      prepare_forward();
      exact_y_ = Buffer<A>(s_.length * in_.width);
      y_kept_.emplace(HeadOf<const A>(exact_y_.data(), in_.width), slots_, width_);
    } else {
      y_kept_.emplace(rows_of(y), slots_, width_);
    }
  }
  void backward(const Member& team);

 private:
  template <typename X>
  HeadOf<X> rows_of(X* x) const {
    return {x, in_.sequences, s_, in_.heads, head_, in_.width};
  }

  // The reads of rows [begin, end) of block n, with alpha.
  void load(int64_t n, int64_t first, int64_t begin, int64_t end, const Slots& slots,
            GlrReads<A>& own) {
    own.reads.assign(in_.rows, slots, width_, begin, end);
    own.alpha.resize(own.reads.size());
    own.beta.resize(own.reads.size());
    load_coefficients(in_.alpha, own.reads, own.alpha);
    A* diagonal = alpha_diag_[n % crews_.in_work].data();
    for (int64_t i = begin; i < end; ++i) {
      diagonal[i - first] = static_cast<A>(in_.alpha_diag[diag_ + i]);
    }
  }

  void load_coefficients(const T* from, const Reads& reads, const PerRead<A>& to) const {
    for (int64_t i = reads.begin(); i < reads.end(); ++i) {
      const T* row = from + reads_ + in_.reads.row_ptr[i];
      A* coefficients = to.at(reads, i);
      for (int64_t r = 0; r < reads.count(i); ++r) coefficients[r] = static_cast<A>(row[r]);
    }
  }

  // beta is loaded by the crew that uses it.
  void load_beta(int64_t n, const Member& crew) {
    for_own(in_work_.of(n), crew,
            [&](GlrReads<A>& part) { load_coefficients(in_.beta, part.reads, part.beta); });
  }

  GlrBlock<A> block_of(int64_t n, int64_t first) const {
    GlrBlock<A> b{};
    b.first = first;
    b.alpha_diag = alpha_diag_[n % crews_.in_work].data();
    b.x = x_.view();
    b.y = y_by_slot_.view();
    b.direct = b.lambda = {row_sums_[n % crews_.in_work].view(), first};
    return b;
  }

  template <typename Out>
  void solve(const UnstagedRows<Out>& y, const Member& team);

  void alpha_gradients(const GlrBlock<A>& b, const Slots& slots, GlrReads<A>& own) const;
  void read_gradients(const GlrBlock<A>& b, const Reads& reads, const A* rows, T* out,
                      PerRead<A>& gradient) const;

  const GlrInputs<T>& in_;
  Sequence s_;
  int64_t head_, diag_, reads_;  // where its coefficients start
  Crews crews_;
  BlockPlan plan_;
  Slots slots_;
  int64_t width_;  // padded
  SlotRows<T> x_;
  PaddedRows<A> y_by_slot_;
  PartsInWork<GlrReads<A>> in_work_;
  // By block in work, by row: coefficients, and what one crew has for the other, sums over x or
  // lambda.
  std::vector<std::vector<A>> alpha_diag_;
  std::vector<PaddedRows<A>> row_sums_;

  // Of the backward.
  std::optional<SlotRows<A>> y_kept_;  // before it was rounded
  std::vector<StagedRows<T>> grad_y_;  // by block in work
  GlrGradients<T> out_;
  UnstagedRows<T> dx_;
  PaddedRows<A> later_, dx_by_slot_;  // later: what readers send back to y
  Buffer<A> exact_y_;
};

template <typename T>
template <typename Out>
void Head<T>::solve(const UnstagedRows<Out>& y, const Member& team) {
  const auto loops = glr_loops<A>();
  const auto rows = row_loops<A>();
  Slots slots = slots_;
  Pipeline(team, crews_)
      .run(plan_.count(),
           {{Crew::kKeys,
             [&](int64_t n, const Member& crew) {
               const auto [first, last] = plan_.rows(n);
               const auto [begin, end] = crew.share(first, last);
               slots.forward(in_.rows, first, last);
               x_.enter({nullptr, begin, end - begin, &slots});
               load(n, first, begin, end, slots, in_work_.of(n)[crew.rank()]);
             }},
            {Crew::kKeys,
             [&](int64_t n, const Member& crew) {
               const GlrReads<A>& own = in_work_.of(n)[crew.rank()];
               const GlrBlock<A> b = block_of(n, plan_.rows(n).first);
               rows.gather(own.reads, own.alpha, b.x.data, b.direct, 0, width_);
             }},
            {Crew::kStates, [&](int64_t n, const Member& crew) { load_beta(n, crew); }},
            {Crew::kStates, [&](int64_t n, const Member& crew) {
               const auto [first, last] = plan_.rows(n);
               const auto [from, to] = crew.share(0, width_, kPad);
               GlrBlock<A> b = block_of(n, first);
               b.out = y.rows(first);
               for (const GlrReads<A>& part : in_work_.of(n)) {
                 loops.solve(b, part, slots, from, to);
               }
               y.store(first, first, last, from, to);
             }}});
}

template <typename T>
void Head<T>::backward(const Member& team) {
  if constexpr (kRoundsOutput<T>) {
    solve(UnstagedRows<A>({exact_y_.data(), in_.width}, plan_.block), team);
  }
  const auto loops = glr_loops<A>();
  const auto enter = enter_loops<A>();
  Slots slots = slots_;
  const int64_t count = plan_.count();
  const auto span = [&](int64_t n) { return plan_.rows(count - 1 - n); };  // last first
  BackwardEntering entering(in_.rows, plan_, slots);
  const auto block = [&](int64_t n) {
    GlrBlock<A> b = block_of(n, span(n).first);
    b.grad_y = grad_y_[n % crews_.in_work].rows(b.first);
    b.later = later_.view();
    b.dx = dx_by_slot_.view();
    return b;
  };
  Pipeline(team, crews_)
      .run(count, {{Crew::kStates,
                    [&](int64_t n, const Member& crew) {
                      in_pieces(entering(n, crew), [&](const Entering& piece) {
                        y_kept_->enter(piece);
                        enter.zero(piece, width_, later_.view());
                      });
                      const auto [first, last] = span(n);
                      const auto [begin, end] = crew.share(first, last);
                      grad_y_[n % crews_.in_work].load(first, begin, end);
                    }},
                   {Crew::kKeys,
                    [&](int64_t n, const Member& crew) {
                      in_pieces(entering(n, crew), [&](const Entering& piece) {
                        x_.enter(piece);
                        if (dx_) enter.zero(piece, width_, dx_by_slot_.view());
                      });
                      const auto [first, last] = span(n);
                      const auto [begin, end] = crew.share(first, last);
                      load(n, first, begin, end, slots, in_work_.of(n)[crew.rank()]);
                    },
                    /*alongside=*/true},
                   {Crew::kStates, [&](int64_t n, const Member& crew) { load_beta(n, crew); }},
                   {Crew::kStates,
                    [&](int64_t n, const Member& crew) {
                      const auto [from, to] = crew.share(0, width_, kPad);
                      const GlrBlock<A> b = block(n);
                      const auto& parts = in_work_.of(n);
                      for (size_t part = parts.size(); part-- > 0;) {
                        loops.solve_transposed(b, parts[part], slots, from, to);
                      }
                    }},
                   {Crew::kStates,
                    [&](int64_t n, const Member& crew) {
                      const GlrBlock<A> b = block(n);
                      for_own(in_work_.of(n), crew, [&](GlrReads<A>& part) {
                        read_gradients(b, part.reads, y_kept_->data(), out_.beta, part.beta);
                      });
                    }},
                   {Crew::kKeys,
                    [&](int64_t n, const Member& crew) {
                      if (!dx_) return;
                      const auto [first, last] = span(n);
                      const auto [from, to] = crew.share(0, width_, kPad);
                      const GlrBlock<A> b = block(n);
                      const auto& parts = in_work_.of(n);
                      for (size_t part = parts.size(); part-- > 0;) {
                        loops.input_gradients(b, parts[part], slots, from, to);
                      }
                      const BlockRows<A> dx = dx_.rows(first);
                      for (int64_t i = first; i < last; ++i) {
                        const A* sum = b.dx[slots.of(i)];
                        std::copy(sum + from, sum + to, dx[i] + from);
                      }
                      dx_.store(first, first, last, from, to);
                    }},
                   {Crew::kKeys, [&](int64_t n, const Member& crew) {
                      alpha_gradients(block(n), slots, in_work_.of(n)[crew.rank()]);
                    }}});
  in_work_.give_back(team);
}

// Gradients of the coefficients of `reads` and what they read of `rows`. The coefficients
// themselves are no longer needed.
template <typename T>
void Head<T>::read_gradients(const GlrBlock<A>& b, const Reads& reads, const A* rows, T* out,
                             PerRead<A>& gradient) const {
  if (!out) return;
  const BlockRows<const A> lambda{{b.lambda.rows.data, b.lambda.rows.stride}, b.first};
  row_loops<A>().dots(reads, lambda, rows, width_, A{1}, gradient);
  for (int64_t i = reads.begin(); i < reads.end(); ++i) {
    const A* values = gradient.at(reads, i);
    T* to = out + reads_ + in_.reads.row_ptr[i];
    for (int64_t r = 0; r < reads.count(i); ++r) to[r] = static_cast<T>(values[r]);
  }
}

template <typename T>
void Head<T>::alpha_gradients(const GlrBlock<A>& b, const Slots& slots, GlrReads<A>& own) const {
  const int64_t begin = own.reads.begin(), end = own.reads.end();
  if (out_.alpha_diag) {
    std::vector<A> diagonal(end - begin);
    glr_loops<A>().diagonal_gradients(b, slots, begin, end, width_, diagonal.data());
    for (int64_t i = begin; i < end; ++i) {
      out_.alpha_diag[diag_ + i] = static_cast<T>(diagonal[i - begin]);
    }
  }
  read_gradients(b, own.reads, b.x.data, out_.alpha, own.alpha);
}

}  // namespace

template <typename T>
void glr(const GlrInputs<T>& in, T* y) {
  parallel_teams(
      in.sequences.count() * in.heads, entries(in), most_members(in),
      [&](int64_t task, int64_t team) {
        Head<T> head(in, task / in.heads, task % in.heads, team);
        head.prepare_forward();
        return head;
      },
      [&](int64_t, Head<T>& head, const Member& member) { head.forward(y, member); });
}

template <typename T>
void glr_backward(const GlrInputs<T>& in, const T* y, const T* grad_y, const GlrGradients<T>& out) {
  parallel_teams(
      in.sequences.count() * in.heads, entries(in), most_members(in),
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
