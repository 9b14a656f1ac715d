#include "hopmix/kernels/scan/short_convolution.h"

#include <algorithm>

#include "hopmix/kernels/base/index.h"
#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/scan/short_convolution_loops.h"

namespace hopmix::kernels {
namespace {

// Tokens and channels to a task, whatever the number of threads: the sums into the gradients of
// weights have one order.
constexpr int64_t kTokens = 256, kChannels = 64;

struct TokenRange {
  int64_t sequence, begin, end;
};

std::vector<TokenRange> token_ranges(const Sequences& sequences) {
  std::vector<TokenRange> all;
  for (int64_t n = 0; n < sequences.count(); ++n) {
    for (int64_t begin = 0; begin < sequences.list[n].length; begin += kTokens) {
      all.push_back({n, begin, std::min(begin + kTokens, sequences.list[n].length)});
    }
  }
  return all;
}

// [W + 1, E padded]: the weight of the token j back in row j, the bias in the last.
template <typename T>
PaddedRows<Accumulator<T>> rows_of_weights(const ShortConvolutionInputs<T>& in) {
  using A = Accumulator<T>;
  PaddedRows<A> rows(in.taps + 1, in.width);
  for (int64_t j = 0; j <= in.taps; ++j) {
    A* row = rows[j];
    for (int64_t c = 0; c < in.width; ++c) {
      if (j < in.taps) {
        row[c] = static_cast<A>(in.weight[c * in.taps + in.taps - 1 - j]);
      } else {
        row[c] = in.bias ? static_cast<A>(in.bias[c]) : A{0};
      }
    }
    std::fill(row + in.width, row + padded(in.width), A{0});
  }
  return rows;
}

// Tokens [from, to) of one block of channels, wherever they are easiest to work on: in the tensor,
// or, if the block is no whole number of vectors, in a copy padded with zeros.
template <typename T>
class Columns {
 public:
  Columns(int64_t stride, int64_t width, int64_t from, int64_t to)
      : stride_(stride), width_(width), from_(from), to_(to) {}

  bool copies() const { return width_ % kPad != 0; }
  int64_t stride() const { return copies() ? padded(width_) : stride_; }

  /// Where token 0 would lie.
  const T* read(const T* x) {
    if (!copies()) return x;
    T* copy = allocate();
    for (int64_t t = from_; t < to_; ++t) {
      T* row = std::copy_n(x + t * stride_, width_, copy + t * stride());
      std::fill_n(row, stride() - width_, static_cast<T>(0.0f));
    }
    return copy;
  }
  T* write(T* x) { return x == nullptr || !copies() ? x : allocate(); }

  /// Puts tokens [begin, end) where they belong.
  void store(const T* copy, T* x, int64_t begin, int64_t end) const {
    if (x == nullptr || !copies()) return;
    for (int64_t t = begin; t < end; ++t) std::copy_n(copy + t * stride(), width_, x + t * stride_);
  }

 private:
  T* allocate() {
    memory_ = Buffer<char>((to_ - from_) * stride() * static_cast<int64_t>(sizeof(T)));
    return reinterpret_cast<T*>(memory_.data()) - from_ * stride();
  }

  int64_t stride_, width_, from_, to_;
  Buffer<char> memory_;
};

// Calls body(piece, index of its tokens, offset of the block in a tensor, in a row of weights, its
// width) for every piece and block of channels.
template <typename T, typename Body>
void for_each_piece(const ShortConvolutionInputs<T>& in, const PaddedRows<Accumulator<T>>& weights,
                    const std::vector<TokenRange>& ranges, const Body& body) {
  const int64_t blocks = (in.width + kChannels - 1) / kChannels;
  const int64_t entries = in.sequences.tokens() * in.width;
  parallel_tasks(static_cast<int64_t>(ranges.size()) * blocks, entries, [&](int64_t index) {
    const TokenRange& range = ranges[index / blocks];
    const Sequence& s = in.sequences.list[range.sequence];
    const int64_t first = index % blocks * kChannels, width = std::min(kChannels, in.width - first);
    const int64_t at = head_offset(in.sequences.first_token(s), 1, 0, in.width) + first;
    ConvolutionPiece<T> piece{};
    piece.begin = range.begin;
    piece.end = range.end;
    piece.length = s.length;
    piece.width = padded(width);
    piece.taps = in.taps;
    piece.silu = in.silu;
    piece.weight = weights[0] + first;
    piece.weight_stride = weights.view().stride;
    body(piece, index / blocks, at, first, width);
  });
}

}  // namespace

template <typename T>
void short_convolution(const ShortConvolutionInputs<T>& in, T* y) {
  const auto loops = short_convolution_loops<T>();
  const auto weights = rows_of_weights(in);
  for_each_piece<T>(in, weights, token_ranges(in.sequences),
                    [&](ConvolutionPiece<T>& piece, int64_t, int64_t at, int64_t, int64_t width) {
                      const int64_t from = std::max<int64_t>(0, piece.begin - in.taps + 1);
                      Columns<T> input(in.width, width, from, piece.end);
                      Columns<T> output(in.width, width, piece.begin, piece.end);
                      piece.x = input.read(in.x + at);
                      piece.stride = input.stride();
                      T* out = output.write(y + at);
                      loops.forward(piece, out);
                      output.store(out, y + at, piece.begin, piece.end);
                    });
}

template <typename T>
void short_convolution_backward(const ShortConvolutionInputs<T>& in, const T* grad_y,
                                const ShortConvolutionGradients<T>& out) {
  using A = Accumulator<T>;
  const auto loops = short_convolution_loops<T>();
  const auto weights = rows_of_weights(in);
  const std::vector<TokenRange> ranges = token_ranges(in.sequences);
  const bool sums_wanted = out.weight || out.bias;
  const int64_t sums_size = (in.taps + 1) * weights.view().stride;
  const Buffer<A> sums(sums_wanted ? static_cast<int64_t>(ranges.size()) * sums_size : 0);
  for_each_piece<T>(
      in, weights, ranges,
      [&](ConvolutionPiece<T>& piece, int64_t task, int64_t at, int64_t first, int64_t width) {
        const int64_t from = std::max<int64_t>(0, piece.begin - in.taps + 1);
        const int64_t to = std::min(piece.length, piece.end + in.taps - 1);
        Columns<T> input(in.width, width, from, to), grad(in.width, width, from, to);
        Columns<T> back(in.width, width, piece.begin, piece.end);
        piece.x = input.read(in.x + at);
        piece.stride = input.stride();
        T* const dx = out.x ? out.x + at : nullptr;
        T* const d = back.write(dx);
        loops.backward(piece, grad.read(grad_y + at), d,
                       sums_wanted ? sums.data() + task * sums_size + first : nullptr);
        back.store(d, dx, piece.begin, piece.end);
      });
  if (!sums_wanted) return;
  const Buffer<A> totals(sums_size);
  std::fill_n(totals.data(), sums_size, A{0});
  for (size_t task = 0; task < ranges.size(); ++task) {
    const A* add = sums.data() + static_cast<int64_t>(task) * sums_size;
    for (int64_t i = 0; i < sums_size; ++i) totals.data()[i] += add[i];
  }
  for (int64_t c = 0; c < in.width; ++c) {
    const auto total = [&](int64_t j) {
      return static_cast<T>(totals.data()[j * weights.view().stride + c]);
    };
    for (int64_t j = 0; out.weight && j < in.taps; ++j) {
      out.weight[c * in.taps + in.taps - 1 - j] = total(j);
    }
    if (out.bias) out.bias[c] = total(in.taps);
  }
}

template void short_convolution(const ShortConvolutionInputs<float>&, float*);
template void short_convolution(const ShortConvolutionInputs<double>&, double*);
template void short_convolution(const ShortConvolutionInputs<Bfloat16>&, Bfloat16*);
template void short_convolution_backward(const ShortConvolutionInputs<float>&, const float*,
                                         const ShortConvolutionGradients<float>&);
template void short_convolution_backward(const ShortConvolutionInputs<double>&, const double*,
                                         const ShortConvolutionGradients<double>&);
template void short_convolution_backward(const ShortConvolutionInputs<Bfloat16>&, const Bfloat16*,
                                         const ShortConvolutionGradients<Bfloat16>&);

}  // namespace hopmix::kernels
