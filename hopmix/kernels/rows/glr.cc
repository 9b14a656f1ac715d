#include "hopmix/kernels/rows/glr.h"

#include <vector>

#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/rows/glr_loops.h"
#include "hopmix/kernels/rows/head_rows.h"
#include "hopmix/kernels/rows/pass.h"
#include "hopmix/kernels/rows/row_loops.h"
#include "hopmix/kernels/rows/shared_gradient.h"
#include "hopmix/kernels/rows/slot_rows.h"
#include "hopmix/kernels/rows/solved.h"

namespace hopmix::kernels {
namespace {

// One head of one sequence. Who sweeps the keys has what belongs to x, with alpha; who sweeps the
// states has y, with beta. README.md has the equations.
template <typename T>
class Head {
 public:
  using A = Accumulator<T>;
  using Part = GlrReads<A>;
  using enum Order;
  using enum Sweeps;

  Head(const GlrInputs<T>& in, int64_t sequence, int64_t head, T* y, const T* given_y,
       const T* grad_y, const GlrGradients<T>& out, int64_t team)
      : in_(in),
        s_(in.sequences.list[sequence]),
        head_(head),
        diag_(plane_offset(s_.batch, in.heads, head, in.sequences.time, s_.start)),
        reads_(plane_offset(s_.batch, in.heads, head, in.reads.nnz, in.reads.first[sequence])),
        out_(out),
        pass_(in.rows, s_.length, in.width, in.width, team),
        x_(rows_of(in.x), pass_.slots(), pass_.stride()),
        y_(rows_of(y), pass_),
        y_by_slot_(pass_.by_slot(y || kRoundsOutput<T>)),
        solved_(y_.exact(rows_of(given_y)), pass_.slots(), pass_.stride()),
        grad_y_(rows_of(grad_y)),
        dy_from_readers_(pass_.by_slot(grad_y)),
        dx_(rows_of(out.x), pass_) {
    const int64_t block = pass_.plan().block;
    for (int64_t n = 0; n < pass_.places(); ++n) {
      work_.push_back(
          {PaddedRows<A>(kNumbers, block), PaddedRows<A>(block, in.width), grad_y_.copy(block)});
    }
  }

  void forward(const Member& team) {
    solve_all(team);
    pass_.give_back(team);
  }

  void backward(const Member& team) {
    if constexpr (kRoundsOutput<T>) solve_all(team);
    pass_.run(*this, kLastToFirst, 0, team,
              {{kStates, &Head::enter_solved},
               {kKeys, &Head::enter_inputs},
               {kKeys, &Head::load},
               {kStates, &Head::load_beta},
               {kStates, &Head::solve_transposed},
               {kStates, &Head::beta_gradients},
               {kKeys, &Head::input_gradients},
               {kKeys, &Head::alpha_gradients}});
    pass_.give_back(team);
  }

 private:
  template <typename X>
  HeadOf<X> rows_of(X* x) const {
    return {x, in_.sequences, s_, in_.heads, head_, in_.width};
  }

  // Numbers of each row of a block.
  enum { kDiagonal, kDiagonalGradient, kNumbers };

  // Of a block in work. Sums: over x_j, backward lambda.
  struct Work {
    PaddedRows<A> numbers, sums;
    PaddedRows<A> grad_y;  // if copied
  };

  void solve_all(const Member& team) {
    pass_.run(*this, kFirstToLast, 0, team,
              {{kKeys, &Head::enter_inputs},
               {kKeys, &Head::load},
               {kKeys, &Head::sum_inputs},
               {kStates, &Head::load_beta},
               {kStates, &Head::solve}});
  }

  void enter_inputs(int64_t, const Entering& tokens) {
    x_.enter(tokens);
    dx_.enter(tokens);
  }

  void enter_solved(int64_t, const Entering& tokens) {
    solved_.enter(tokens);
    enter_loops<A>().zero(tokens, pass_.stride(), dy_from_readers_.view());
  }

  // With alpha; who sweeps the states loads beta.
  void load(const Block& b, Part& part, int64_t begin, int64_t end) {
    const Work& work = work_[b.place];
    grad_y_.load(work.grad_y, b.first, begin, end);
    part.reads.assign(in_.rows, b.slots, pass_.stride(), begin, end);
    part.alpha.resize(part.reads.size());
    part.beta.resize(part.reads.size());
    load_coefficients(in_.alpha, part.reads, part.alpha);
    HeadOf<const T>(in_.alpha_diag + diag_, 1)
        .load_numbers(b.first, begin, end, work.numbers[kDiagonal]);
  }

  void load_beta(const Block&, Part& part) { load_coefficients(in_.beta, part.reads, part.beta); }

  void load_coefficients(const T* from, const Reads& reads, const PerRead<A>& to) const {
    for (int64_t i = reads.begin(); i < reads.end(); ++i) {
      const T* row = from + reads_ + in_.reads.row_ptr[i];
      A* coefficients = to.at(reads, i);
      for (int64_t r = 0; r < reads.count(i); ++r) coefficients[r] = static_cast<A>(row[r]);
    }
  }

  // sum_j alpha_ij x_j
  void sum_inputs(const Block& b, Part& part) {
    rows_.gather(part.reads, part.alpha, x_.data(), block_of(b).direct, 0, pass_.stride());
  }

  // y_i = alpha_ii x_i + sum_j alpha_ij x_j + sum_j beta_ij y_j
  void solve(const Block& b, Part& part, Columns c) {
    loops_.solve(block_of(b), part, b.slots, c.from, c.to);
    y_.store(b, part.reads, c);
  }

  // lambda_i, and what row i sends back to y_j
  void solve_transposed(const Block& b, Part& part, Columns c) {
    loops_.solve_transposed(block_of(b), part, b.slots, c.from, c.to);
  }

  // dbeta_ij = lambda_i . y_j
  void beta_gradients(const Block& b, Part& part) {
    read_gradients(b, part.reads, solved_.data(), out_.beta, part.beta);
  }

  // dx = A^T lambda
  void input_gradients(const Block& b, Part& part, Columns c) {
    if (!dx_) return;
    loops_.input_gradients(block_of(b), part, b.slots, c.from, c.to);
    dx_.store(b, part.reads, c);
  }

  // dalpha_ij = lambda_i . x_j, dalpha_ii too
  void alpha_gradients(const Block& b, Part& part) {
    const int64_t begin = part.reads.begin(), end = part.reads.end();
    if (out_.alpha_diag) {
      A* diagonal = work_[b.place].numbers[kDiagonalGradient];
      loops_.diagonal_gradients(block_of(b), b.slots, begin, end, pass_.stride(),
                                diagonal + (begin - b.first));
      HeadOf<T>(out_.alpha_diag + diag_, 1).store_numbers(b.first, begin, end, diagonal);
    }
    read_gradients(b, part.reads, x_.data(), out_.alpha, part.alpha);
  }

  // Products of lambda with what is read of `rows`; the coefficients are no longer needed.
  void read_gradients(const Block& b, const Reads& reads, const A* rows, T* out,
                      const PerRead<A>& gradient) const {
    if (!out) return;
    rows_.dots(reads, read_only(block_of(b).lambda), rows, pass_.stride(), A{1}, gradient);
    for (int64_t i = reads.begin(); i < reads.end(); ++i) {
      const A* values = gradient.at(reads, i);
      T* to = out + reads_ + in_.reads.row_ptr[i];
      for (int64_t r = 0; r < reads.count(i); ++r) to[r] = static_cast<T>(values[r]);
    }
  }

  GlrBlock<A> block_of(const Block& b) const {
    const Work& work = work_[b.place];
    GlrBlock<A> all{};
    all.first = b.first;
    all.alpha_diag = work.numbers[kDiagonal];
    all.x = x_.view();
    all.y = y_by_slot_.view();
    all.direct = all.lambda = {work.sums.view(), b.first};
    all.out = y_.rows(b.first);
    all.grad_y = grad_y_.block(work.grad_y, b.first);
    all.dy_from_readers = dy_from_readers_.view();
    all.dx = dx_.view();
    return all;
  }

  const RowLoops<A> rows_ = row_loops<A>();
  const GlrLoops<A> loops_ = glr_loops<A>();
  const GlrInputs<T>& in_;
  Sequence s_;
  int64_t head_, diag_, reads_;  // where its coefficients start
  GlrGradients<T> out_;
  Pass<Part> pass_;
  SlotRows<T> x_;
  Solved<T> y_;
  PaddedRows<A> y_by_slot_;  // while it is solved
  SlotRows<A> solved_;       // backward: y
  HeadOf<const T> grad_y_;
  PaddedRows<A> dy_from_readers_;
  SlotGradient<T> dx_;
  std::vector<Work> work_;  // by place
};

// Members of a team: one half hands the other a row of sums a token, and with few reads a row that
// takes longer than to make it where cores are far apart.
template <typename T>
int64_t most_members(const GlrInputs<T>& in) {
  constexpr int64_t kWorthTeam = 1 << 23;
  return in.reads.nnz * in.width >= kWorthTeam ? padded(in.width) / kPad : 1;
}

}  // namespace

template <typename T>
void glr(const GlrInputs<T>& in, T* y) {
  for_each_head(
      in.sequences, in.heads, in.sequences.tokens() * in.heads * in.width, most_members(in),
      [&](int64_t sequence, int64_t head, int64_t team) {
        return Head<T>(in, sequence, head, y, nullptr, nullptr, {}, team);
      },
      &Head<T>::forward);
}

template <typename T>
void glr_backward(const GlrInputs<T>& in, const T* y, const T* grad_y, const GlrGradients<T>& out) {
  for_each_head(
      in.sequences, in.heads, in.sequences.tokens() * in.heads * in.width, most_members(in),
      [&](int64_t sequence, int64_t head, int64_t team) {
        return Head<T>(in, sequence, head, nullptr, y, grad_y, out, team);
      },
      &Head<T>::backward);
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
