#include "hopmix/kernels/maps/head_loss.h"

#include <algorithm>

#include "hopmix/kernels/base/operands.h"
#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/maps/head_loss_loops.h"

namespace hopmix::kernels {
namespace {

// Vocabulary entries to a tile of logits, and the most logits and rows that a panel holds.
constexpr int64_t kEntries = 64, kPanel = int64_t{1} << 23, kPanelRows = 2048;
constexpr int64_t kTile = kEntries * kHeadRows;

// Rows a multiple of 512 bytes apart would crowd into a few sets of the L1 cache: a factor of them
// is read a fifth slower.
constexpr int64_t spread(int64_t stride) { return stride % 128 == 0 ? stride + kPad : stride; }

constexpr int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

// The kernel goes by panels of rows, whose logits are kept for the gradients: [strip, block] tiles
// of kEntries entries by kHeadRows rows. A strip is kHeadRows rows, a block kEntries entries.
// Gradients of the weight belong to blocks and add up panel by panel, those of x to strips.
template <typename T, typename O>
class HeadLoss {
  using A = Accumulator<T>;

 public:
  HeadLoss(const HeadLossInputs<T>& in, A* losses, int64_t* guesses,
           const HeadLossGradients<T>& out)
      : in_(in), losses_(losses), guesses_(guesses), out_(out) {
    bias_ = Buffer<A>(in.bias ? in.vocabulary : 0);
    for (int64_t v = 0; in.bias && v < in.vocabulary; ++v) bias_[v] = convert<A>(in.bias[v]);
    d_weight_ = Buffer<A>(out.weight && !kSame ? in.vocabulary * in.width : 0);
    d_bias_ = Buffer<A>(out.bias ? in.vocabulary : 0);
    if (out.bias) std::fill_n(d_bias_.data(), in.vocabulary, A{0});
    left_ = Buffer<O>(strips_ * kHeadRows * stride_);
    turned_ = Buffer<O>(strips_ * kHeadRows * stride_);
    right_ = Buffer<O>(out.weight && kPairs ? strips_ * kHeadRows * stride_ : 0);
    largest_ = Buffer<A>(strips_ * blocks_ * kHeadRows);
    index_ = Buffer<A>(strips_ * blocks_ * kHeadRows);
    sum_ = Buffer<A>(strips_ * blocks_ * kHeadRows);
    at_target_ = Buffer<A>(strips_ * kHeadRows);
    row_weight_ = Buffer<A>(strips_ * kHeadRows);
    tiles_ = Buffer<A>(keeps_ ? strips_ * blocks_ * kTile : 0);
  }

  A run() {
    for (int64_t first = 0; first < in_.rows; first += strips_ * kHeadRows) panel(first);
    finish();
    double total = 0;
    for (int64_t i = 0; i < in_.rows; ++i) total += double{row_weight(i)} * losses_[i];
    return static_cast<A>(total);
  }

 private:
  static constexpr bool kSame = std::is_same_v<T, A>;          // gradients need no rounding
  static constexpr bool kPairs = std::is_same_v<O, Bfloat16>;  // right factors are interleaved

  A row_weight(int64_t row) const {
    return in_.row_weights ? in_.row_weights[row] : A{1} / static_cast<A>(in_.rows);
  }

  int64_t rows_of_strip(int64_t first, int64_t strip) const {
    return std::clamp<int64_t>(in_.rows - first - strip * kHeadRows, 0, kHeadRows);
  }
  int64_t entries(int64_t block) const {
    return std::min(kEntries, in_.vocabulary - block * kEntries);
  }
  A* tile(int64_t strip, int64_t block) const { return tiles_ + (strip * blocks_ + block) * kTile; }
  int64_t known(int64_t strip, int64_t block) const {
    return (strip * blocks_ + block) * kHeadRows;
  }

  // Entries of the weight as a factor: where they lie, or packed.
  struct Weight {
    const O* data;
    int64_t stride, depth;
  };
  static constexpr bool kInPlace = std::is_same_v<T, O> && !kPairs;
  Weight in_place(int64_t block) const {
    if constexpr (!kInPlace)
      return {};
    else
      return {in_.weight + block * kEntries * in_.width, in_.width, in_.width};
  }
  Weight packed(int64_t block, const Buffer<O>& to) const {
    const MatrixView<T> view{in_.weight, in_.vocabulary, in_.width, in_.width};
    pack_left<O>(view, block * kEntries, kEntries, stride_, to.data());
    return {to.data(), stride_, padded(in_.width)};
  }

  void panel(int64_t first) {
    const int64_t strips = std::min(strips_, ceil_div(in_.rows - first, kHeadRows));
    const int64_t work = strips * kHeadRows * in_.vocabulary;
    parallel_tasks(strips, work, [&](int64_t strip) { load(first, strip); });
    parallel_tasks(blocks_ * strips, work,
                   [&](int64_t task) { exponentials(first, task % strips, task / strips); });
    parallel_tasks(strips, work, [&](int64_t strip) { softmax(first, strip); });
    if (!keeps_) return;
    parallel_tasks(blocks_, work, [&](int64_t block) { entry_gradients(first, strips, block); });
    if (out_.x) parallel_tasks(strips, work, [&](int64_t strip) { row_gradients(first, strip); });
  }

  void load(int64_t first, int64_t strip) {
    const int64_t at = strip * kHeadRows * stride_, row = first + strip * kHeadRows;
    O* left = left_ + at;
    pack_left<O>(MatrixView<T>{in_.x, in_.rows, in_.width, in_.width}, row, kHeadRows, stride_,
                 left);
    pack_columns<O>(left, kHeadRows, stride_, turned_ + at, kHeadRows);
    if (kPairs && out_.weight) pack_right<O>(left, kHeadRows, stride_, right_ + at);
    for (int64_t r = 0; r < kHeadRows; ++r) {
      row_weight_[strip * kHeadRows + r] = row + r < in_.rows ? row_weight(row + r) : A{0};
    }
  }

  // Calls f(row of the strip, entry of the block) for targets that lie in the block.
  template <typename F>
  void for_targets(int64_t first, int64_t strip, int64_t block, const F& f) const {
    const int64_t* targets = in_.targets + first + strip * kHeadRows;
    for (int64_t r = 0; r < rows_of_strip(first, strip); ++r) {
      const int64_t v = targets[r] - block * kEntries;
      if (v >= 0 && v < kEntries) f(r, v);
    }
  }

  void exponentials(int64_t first, int64_t strip, int64_t block) {
    const Buffer<O> memory(kInPlace ? 0 : kEntries * stride_);
    const Buffer<A> own(keeps_ ? 0 : kTile);
    A* logits = keeps_ ? tile(strip, block) : own.data();
    const Weight w = kInPlace ? in_place(block) : packed(block, memory);
    const int64_t count = entries(block), at = known(strip, block);
    multiply<O>(count, kHeadRows, w.depth, w.data, w.stride, turned_ + strip * kHeadRows * stride_,
                kHeadRows, logits, kHeadRows, /*add=*/false);
    const A* bias = in_.bias ? bias_ + block * kEntries : nullptr;
    for_targets(first, strip, block, [&](int64_t r, int64_t v) {
      at_target_[strip * kHeadRows + r] = logits[v * kHeadRows + r] + (bias ? bias[v] : A{0});
    });
    loops_.exponentials(logits, bias, count, largest_ + at, index_ + at, sum_ + at);
    std::fill(logits + count * kHeadRows, logits + kTile, A{0});
    release_gemm();
  }

  void softmax(int64_t first, int64_t strip) {
    A lse[kHeadRows];
    A* largest = largest_ + known(strip, 0);
    loops_.combine(largest, sum_ + known(strip, 0), blocks_, lse);
    const int64_t row = first + strip * kHeadRows;
    for (int64_t r = 0; r < rows_of_strip(first, strip); ++r) {
      int64_t best = 0;
      for (int64_t b = 1; b < blocks_; ++b) {
        if (largest[b * kHeadRows + r] > largest[best * kHeadRows + r]) best = b;
      }
      losses_[row + r] = lse[r] - at_target_[strip * kHeadRows + r];
      guesses_[row + r] = best * kEntries + static_cast<int64_t>(index_[known(strip, best) + r]);
    }
    if (keeps_) loops_.factors(largest, blocks_, lse, row_weight_ + strip * kHeadRows);
  }

  // Logits become their gradients, and these those of the weight and the bias.
  void entry_gradients(int64_t first, int64_t strips, int64_t block) {
    const Operand<O, A> operand(kTile);
    const int64_t from = block * kEntries, count = entries(block);
    A* sums = out_.bias ? d_bias_ + from : nullptr;
    for (int64_t strip = 0; strip < strips; ++strip) {
      A* g = tile(strip, block);
      loops_.scale(g, count, largest_ + known(strip, block), sums);
      for_targets(first, strip, block, [&](int64_t r, int64_t v) {
        const A weight = row_weight_[strip * kHeadRows + r];
        g[v * kHeadRows + r] -= weight;
        if (sums) sums[v] -= weight;
      });
      if (!out_.weight) continue;
      const Buffer<O>& x = kPairs ? right_ : left_;
      multiply<O>(count, in_.width, kHeadRows, operand.left(g, kEntries, kHeadRows), kHeadRows,
                  x + strip * kHeadRows * stride_, stride_, weight_sums() + from * in_.width,
                  in_.width, /*add=*/first > 0 || strip > 0);
    }
    release_gemm();
  }

  A* weight_sums() const {
    if constexpr (kSame) return out_.weight;
    return d_weight_.data();
  }

  void row_gradients(int64_t first, int64_t strip) {
    const bool packs = !kInPlace || stride_ > padded(in_.width);
    const Buffer<O> memory(packs ? kEntries * stride_ : 0);
    const Buffer<O> pairs(kPairs ? kEntries * stride_ : 0);
    const Operand<O, A> operand(kTile, /*transposes=*/true);
    const int64_t rows = rows_of_strip(first, strip);
    T* to = out_.x + (first + strip * kHeadRows) * in_.width;
    const Buffer<A> own(kSame ? 0 : kHeadRows * in_.width);
    A* sums = own.data();
    if constexpr (kSame) sums = to;
    for (int64_t block = 0; block < blocks_; ++block) {
      Weight w = packs ? packed(block, memory) : in_place(block);
      if constexpr (kPairs) {
        pack_right<O>(memory.data(), kEntries, stride_, pairs.data());
        w.data = pairs.data();
      }
      const int64_t count = kPairs ? kEntries : entries(block);
      multiply<O>(rows, in_.width, count,
                  operand.left_transposed(tile(strip, block), kEntries, kHeadRows), kEntries,
                  w.data, w.stride, sums, in_.width, /*add=*/block > 0);
    }
    if constexpr (!kSame) std::transform(sums, sums + rows * in_.width, to, convert<T, A>);
    release_gemm();
  }

  // What was summed in another type than it is wanted in, or never.
  void finish() {
    for (int64_t v = 0; out_.bias && v < in_.vocabulary; ++v) {
      out_.bias[v] = static_cast<T>(d_bias_[v]);
    }
    if (!out_.weight) return;
    const int64_t size = in_.vocabulary * in_.width;
    if (in_.rows == 0) {
      std::fill_n(out_.weight, size, static_cast<T>(A{0}));
    } else if constexpr (!kSame) {
      std::transform(d_weight_.data(), d_weight_ + size, out_.weight, convert<T, A>);
    }
  }

  const HeadLossInputs<T>& in_;
  A* losses_;
  int64_t* guesses_;
  const HeadLossGradients<T>& out_;
  const bool keeps_ = out_.x || out_.weight || out_.bias;
  const int64_t blocks_ = ceil_div(in_.vocabulary, kEntries);
  const int64_t stride_ = spread(padded(in_.width));  // of packed rows
  const int64_t strips_ =
      std::min(ceil_div(in_.rows, kHeadRows),
               std::clamp<int64_t>(kPanel / std::max<int64_t>(blocks_ * kTile, 1), 1,
                                   kPanelRows / kHeadRows));
  const HeadLossLoops<A> loops_ = head_loss_loops<A>();
  Buffer<A> bias_, d_weight_, d_bias_;
  Buffer<O> left_, turned_, right_;   // rows of x, in strips, as factors
  Buffer<A> largest_, index_, sum_;   // [strip, block, kHeadRows]
  Buffer<A> at_target_, row_weight_;  // [strip, kHeadRows]
  Buffer<A> tiles_;
};

}  // namespace

template <typename T>
Accumulator<T> head_loss(const HeadLossInputs<T>& in, Accumulator<T>* losses, int64_t* guesses,
                         const HeadLossGradients<T>& out) {
  Accumulator<T> loss = 0;
  with_operands<T>([&]<typename O>() { loss = HeadLoss<T, O>(in, losses, guesses, out).run(); });
  return loss;
}

template float head_loss(const HeadLossInputs<float>&, float*, int64_t*,
                         const HeadLossGradients<float>&);
template double head_loss(const HeadLossInputs<double>&, double*, int64_t*,
                          const HeadLossGradients<double>&);
template float head_loss(const HeadLossInputs<Bfloat16>&, float*, int64_t*,
                         const HeadLossGradients<Bfloat16>&);

}  // namespace hopmix::kernels
