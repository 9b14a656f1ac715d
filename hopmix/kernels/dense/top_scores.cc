#include "hopmix/kernels/dense/top_scores.h"

#include <algorithm>
#include <limits>

#include "hopmix/kernels/dense/top_scores_loops.h"

namespace hopmix::kernels {

int64_t TopShape::capacity() const { return padded(std::max(2 * kappa, kGroup)) + kGroup; }

template <typename A>
TopScores<A>::TopScores(int64_t rows, const TopShape& shape)
    : shape_(shape),
      memory_(rows * 2 * (shape.capacity() + kTileLanes)),
      rows_(static_cast<size_t>(rows)) {
  // Whole vectors are stored after the last candidate.
  const int64_t stride = shape.capacity() + kTileLanes;
  for (int64_t r = 0; r < rows; ++r) {
    rows_[r].keys = memory_.data() + 2 * r * stride;
    rows_[r].columns = rows_[r].keys + stride;
  }
  clear();
}

template <typename A>
void TopScores<A>::clear() {
  for (Candidates<A>& row : rows_) {
    row.count = 0;
    row.threshold = std::numeric_limits<ScoreKey<A>>::min();
    row.open_block = -1;
  }
}

template <typename A>
void TopScores<A>::offer(const ScoreTile<A>& tile, int64_t diagonal, int64_t first) {
  top_loops<A>().offer(tile, diagonal, first, shape_, rows_.data());
}

template <typename A>
void TopScores<A>::take(int64_t row, int64_t kappa, int32_t* out) {
  Candidates<A>& from = rows_[row];
  top_loops<A>().rank(shape_, from, out);
  std::fill(out + from.count, out + kappa, -1);
}

template class TopScores<float>;
template class TopScores<double>;

}  // namespace hopmix::kernels
