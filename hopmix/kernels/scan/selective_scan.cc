#include "hopmix/kernels/scan/selective_scan.h"

#include <algorithm>

#include "hopmix/kernels/base/index.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/scan/selective_scan_loops.h"

namespace hopmix::kernels {
namespace {

// Blocks of kPad channels and what each reads of the parameters, as rows.
template <typename T>
struct Plan {
  using A = Accumulator<T>;
  const SelectiveScanInputs<T>& in;
  int64_t blocks, rows;  // rows = S * kPad, of a state of one block
  Buffer<A> a, d;        // [blocks] of [S, kPad]; [blocks, kPad]

  explicit Plan(const SelectiveScanInputs<T>& inputs)
      : in(inputs),
        blocks(padded(in.width) / kPad),
        rows(in.states * kPad),
        a(blocks * rows),
        d(blocks * kPad) {
    for (int64_t block = 0; block < blocks; ++block) {
      rows_of(in.a, block, a.data() + block * rows);
      for (int64_t c = 0; c < kPad; ++c) {
        const int64_t e = block * kPad + c;
        d.data()[e] = in.d && e < in.width ? in.d[e] : A{0};
      }
    }
  }

  int64_t channels(int64_t block) const { return std::min(kPad, in.width - block * kPad); }

  // A block of [E, S] as S rows of kPad, and back; null stands for zeros.
  void rows_of(const A* from, int64_t block, A* to) const {
    std::fill_n(to, rows, A{0});
    if (from == nullptr) return;
    for (int64_t c = 0; c < channels(block); ++c) {
      for (int64_t n = 0; n < in.states; ++n) {
        to[n * kPad + c] = from[(block * kPad + c) * in.states + n];
      }
    }
  }
  void from_rows(const A* from, int64_t block, A* to) const {
    for (int64_t c = 0; c < channels(block); ++c) {
      for (int64_t n = 0; n < in.states; ++n) {
        to[(block * kPad + c) * in.states + n] = from[n * kPad + c];
      }
    }
  }

  // The state of sequence s in a tensor [N, E, S].
  int64_t state_at(int64_t s) const { return s * in.width * in.states; }

  // A block of row `row` of the checkpoints [rows, S, padded(E)].
  int64_t checkpoint_at(int64_t row, int64_t block) const {
    return row * in.states * padded(in.width) + block * kPad;
  }
  int64_t first_checkpoint(int64_t s) const {
    return in.sequences.first_token(in.sequences.list[s]) / kScanPiece + s;
  }
};

// The piece that begins at token `begin` of sequence s; its B and C in the type of sums, in memory
// of its own if they are stored in another.
template <typename T>
class PieceInputs {
 public:
  using A = Accumulator<T>;

  explicit PieceInputs(const Plan<T>& plan)
      : plan_(plan), memory_(kRoundsOutput<T> ? 2 * kScanPiece * plan.in.states : 0) {}

  void move_to(int64_t s, int64_t begin) {
    const SelectiveScanInputs<T>& in = plan_.in;
    const Sequence& sequence = in.sequences.list[s];
    length_ = std::min(kScanPiece, sequence.length - begin);
    token_ = in.sequences.first_token(sequence) + begin;
    b_ = summed(in.b, 0);
    c_ = summed(in.c, 1);
  }

  /// Channels of this block, with their state in `h`.
  ScanPiece<T> of(int64_t block, A* h) const {
    const SelectiveScanInputs<T>& in = plan_.in;
    return {length_,
            in.width,
            plan_.channels(block),
            in.states,
            in.u + at(block),
            in.delta + at(block),
            b_,
            c_,
            plan_.a.data() + block * plan_.rows,
            plan_.d.data() + block * kPad,
            h};
  }

  /// Where the block's channels of the first token lie in a tensor [B, T, E].
  int64_t at(int64_t block) const {
    return head_offset(token_, 1, 0, plan_.in.width) + block * kPad;
  }
  int64_t token() const { return token_; }
  int64_t length() const { return length_; }

 private:
  const A* summed(const T* all, int64_t which) {
    const int64_t count = length_ * plan_.in.states;
    const T* from = all + head_offset(token_, 1, 0, plan_.in.states);
    if constexpr (kRoundsOutput<T>) {
      A* to = memory_.data() + which * kScanPiece * plan_.in.states;
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<A>(from[i]);
      return to;
    } else {
      (void)count;
      return from;
    }
  }

  const Plan<T>& plan_;
  Buffer<A> memory_;
  int64_t length_ = 0, token_ = 0;
  const A *b_ = nullptr, *c_ = nullptr;
};

// What the members of a team that goes back through one sequence share.
template <typename A>
struct Backward {
  Buffer<A> carried;  // [blocks] of [S, kPad]: dLoss/dh, on its way back
  Buffer<A> sums;     // [2 pieces, blocks, dB and dC, S, kScanPiece]: of each block's channels
};

// dB and dC of a piece: the sums of all blocks, for states [first, last).
template <typename T>
void add_blocks(const Plan<T>& plan, const Accumulator<T>* sums, const PieceInputs<T>& piece,
                int64_t first, int64_t last, T* db, T* dc) {
  using A = Accumulator<T>;
  const int64_t states = plan.in.states;
  for (int64_t which = 0; which < 2; ++which) {
    T* out = which == 0 ? db : dc;
    if (out == nullptr) continue;
    out += head_offset(piece.token(), 1, 0, states);
    for (int64_t n = first; n < last; ++n) {
      A total[kScanPiece] = {};
      for (int64_t block = 0; block < plan.blocks; ++block) {
        const A* add = sums + ((block * 2 + which) * states + n) * kScanPiece;
        for (int64_t t = 0; t < piece.length(); ++t) total[t] += add[t];
      }
      for (int64_t t = 0; t < piece.length(); ++t) out[t * states + n] = static_cast<T>(total[t]);
    }
  }
}

}  // namespace

template <typename T>
void selective_scan(const SelectiveScanInputs<T>& in, T* y, Accumulator<T>* state,
                    Accumulator<T>* checkpoints) {
  using A = Accumulator<T>;
  const auto loops = selective_scan_loops<T>();
  const Plan<T> plan(in);
  const int64_t entries = in.sequences.tokens() * in.width * in.states;
  parallel_tasks(in.sequences.count() * plan.blocks, entries, [&](int64_t task) {
    const int64_t s = task / plan.blocks, block = task % plan.blocks;
    const ScanScratch<A> scratch;
    const Buffer<A> h(plan.rows);
    PieceInputs<T> piece(plan);
    const A* initial = in.initial_state ? in.initial_state + plan.state_at(s) : nullptr;
    plan.rows_of(initial, block, h.data());
    int64_t row = plan.first_checkpoint(s);
    for (int64_t begin = 0; begin < in.sequences.list[s].length; begin += kScanPiece, ++row) {
      for (int64_t n = 0; checkpoints && n < in.states; ++n) {
        std::copy_n(h.data() + n * kPad, kPad,
                    checkpoints + plan.checkpoint_at(row, block) + n * padded(in.width));
      }
      piece.move_to(s, begin);
      loops.forward(piece.of(block, h.data()), scratch, y + piece.at(block));
    }
    plan.from_rows(h.data(), block, state + plan.state_at(s));
  });
}

template <typename T>
void selective_scan_backward(const SelectiveScanInputs<T>& in, const Accumulator<T>* checkpoints,
                             const T* grad_y, const Accumulator<T>* grad_state,
                             const SelectiveScanGradients<T>& out) {
  using A = Accumulator<T>;
  const auto loops = selective_scan_loops<T>();
  const Plan<T> plan(in);
  const int64_t count = in.sequences.count(), block_sums = 2 * in.states * kScanPiece;
  // Of each sequence, so that they are added in one order.
  const int64_t parameter_sums = plan.blocks * (plan.rows + kPad);
  const Buffer<A> da_dd(count * parameter_sums);
  const auto da = [&](int64_t s, int64_t block) {
    return da_dd.data() + s * parameter_sums + block * (plan.rows + kPad);
  };
  const auto make = [&](int64_t, int64_t) {
    return Backward<A>{Buffer<A>(plan.blocks * plan.rows),
                       Buffer<A>(out.b || out.c ? 2 * plan.blocks * block_sums : 0)};
  };
  const auto work = [&](int64_t s, Backward<A>& shared, const Member& member) {
    const auto [first, last] = member.share(0, plan.blocks);
    const ScanScratch<A> scratch;
    const Buffer<A> h(plan.rows);
    PieceInputs<T> piece(plan);
    for (int64_t block = first; block < last; ++block) {
      const A* grad = grad_state ? grad_state + plan.state_at(s) : nullptr;
      plan.rows_of(grad, block, shared.carried.data() + block * plan.rows);
      std::fill_n(da(s, block), plan.rows + kPad, A{0});
    }
    const int64_t pieces = (in.sequences.list[s].length + kScanPiece - 1) / kScanPiece;
    for (int64_t k = pieces - 1; k >= 0; --k) {
      piece.move_to(s, k * kScanPiece);
      // A member may already be at the next piece while another still adds up this one's sums.
      A* const sums = shared.sums.data() + k % 2 * plan.blocks * block_sums;
      for (int64_t block = first; block < last; ++block) {
        const int64_t row = plan.checkpoint_at(plan.first_checkpoint(s) + k, block);
        for (int64_t n = 0; n < in.states; ++n) {
          std::copy_n(checkpoints + row + n * padded(in.width), kPad, h.data() + n * kPad);
        }
        A* const own = sums + block * block_sums;
        ScanPieceGradients<T> grads{};
        grads.grad_y = grad_y ? grad_y + piece.at(block) : nullptr;
        grads.u = out.u ? out.u + piece.at(block) : nullptr;
        grads.delta = out.delta ? out.delta + piece.at(block) : nullptr;
        grads.carried = shared.carried.data() + block * plan.rows;
        grads.a = da(s, block);
        grads.d = grads.a + plan.rows;
        grads.b = out.b ? own : nullptr;
        grads.c = out.c ? own + in.states * kScanPiece : nullptr;
        loops.backward(piece.of(block, h.data()), scratch, grads);
      }
      if (!out.b && !out.c) continue;
      member.sync();
      const auto [from, to] = member.share(0, in.states);
      add_blocks<T>(plan, sums, piece, from, to, out.b, out.c);
    }
    for (int64_t block = first; out.initial_state && block < last; ++block) {
      plan.from_rows(shared.carried.data() + block * plan.rows, block,
                     out.initial_state + plan.state_at(s));
    }
  };
  parallel_teams(count, in.sequences.tokens() * in.width * in.states, plan.blocks, make, work);

  for (int64_t block = 0; block < plan.blocks; ++block) {
    const Buffer<A> total(plan.rows + kPad);
    std::fill_n(total.data(), plan.rows + kPad, A{0});
    for (int64_t s = 0; s < count; ++s) {
      for (int64_t i = 0; i < plan.rows + kPad; ++i) total.data()[i] += da(s, block)[i];
    }
    if (out.a) plan.from_rows(total.data(), block, out.a);
    if (out.d) {
      std::copy_n(total.data() + plan.rows, plan.channels(block), out.d + block * kPad);
    }
  }
}

template void selective_scan(const SelectiveScanInputs<float>&, float*, float*, float*);
template void selective_scan(const SelectiveScanInputs<double>&, double*, double*, double*);
template void selective_scan(const SelectiveScanInputs<Bfloat16>&, Bfloat16*, float*, float*);
template void selective_scan_backward(const SelectiveScanInputs<float>&, const float*, const float*,
                                      const float*, const SelectiveScanGradients<float>&);
template void selective_scan_backward(const SelectiveScanInputs<double>&, const double*,
                                      const double*, const double*,
                                      const SelectiveScanGradients<double>&);
template void selective_scan_backward(const SelectiveScanInputs<Bfloat16>&, const float*,
                                      const Bfloat16*, const float*,
                                      const SelectiveScanGradients<Bfloat16>&);

}  // namespace hopmix::kernels
