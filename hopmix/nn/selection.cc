#include "hopmix/nn/selection.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace hopmix::nn {

using torch::Tensor;

Tensor best_positions(const Tensor& scores, int64_t kappa) {
  const Tensor values = scores.detach().to(torch::kFloat64).contiguous();
  const int64_t n = values.size(2), rows = values.size(0) * values.size(1);
  Tensor best = torch::full({values.size(0), values.size(1), kappa}, -1, torch::kInt32);
  const auto* score = values.const_data_ptr<double>();
  auto* out = best.mutable_data_ptr<int32_t>();
  std::vector<int32_t> order(static_cast<size_t>(n));
  const auto kept = static_cast<std::ptrdiff_t>(std::min(kappa, n));
  for (int64_t r = 0; r < rows; ++r, score += n, out += kappa) {
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + kept, order.end(),
                      [score](int32_t a, int32_t b) {
                        const bool a_nan = std::isnan(score[a]), b_nan = std::isnan(score[b]);
                        if (a_nan != b_nan) return b_nan;  // NaN sorts below every number
                        return a_nan || score[a] == score[b] ? a < b : score[a] > score[b];
                      });
    std::copy(order.begin(), order.begin() + kept, out);
  }
  return best;
}

Tensor without_self(const Tensor& indices, const Tensor& positions) {
  const int64_t kappa = indices.size(3);
  const Tensor self = positions.to(torch::kInt32).view({1, -1, 1, 1}) == indices;
  // Its index, or the end; later entries move up by one.
  const Tensor found =
      torch::where(self, torch::arange(kappa), kappa - 1).amin(3, /*keepdim=*/true);
  const Tensor from = torch::arange(kappa - 1);
  return indices.gather(3, (from + (from >= found).to(torch::kInt64)));
}

int64_t neighborhood_width(const std::vector<int64_t>& widths, bool cumulative) {
  int64_t product = 1, sum = 0;
  for (const int64_t width : widths) sum += product *= width;
  return cumulative ? sum : product;
}

Tensor token_neighborhood(const Tensor& newest, const Tensor& pointers,
                          const std::vector<int64_t>& widths, bool cumulative) {
  const Tensor own = newest.contiguous();
  const Tensor table = widths.size() > 1 ? pointers.contiguous() : Tensor();
  const int64_t batch = own.size(0), heads = own.size(1), kappa = own.size(2);
  const int64_t tokens = table.defined() ? table.size(1) : 0;
  const int64_t kept = table.defined() ? table.size(3) : 0;
  const int64_t width = neighborhood_width(widths, cumulative);
  Tensor result = torch::full({batch, heads, width}, -1, torch::kInt32);
  const auto* first = own.const_data_ptr<int32_t>();
  const auto* links = table.defined() ? table.const_data_ptr<int32_t>() : nullptr;
  auto* out = result.mutable_data_ptr<int32_t>();
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int32_t* best = first + (b * heads + h) * kappa;
      std::vector<int32_t> reached(best, best + widths[0]), all;
      for (size_t hop = 0;; ++hop) {
        std::erase(reached, -1);
        if (cumulative) all.insert(all.end(), reached.begin(), reached.end());
        if (hop + 1 == widths.size()) break;
        std::vector<int32_t> next;
        for (const int32_t t : reached) {
          const int32_t* link = links + ((b * tokens + t) * heads + h) * kept;
          next.insert(next.end(), link, link + widths[hop + 1]);
        }
        reached = std::move(next);
      }
      if (!cumulative) all = std::move(reached);
      std::sort(all.begin(), all.end());
      all.erase(std::unique(all.begin(), all.end()), all.end());
      std::copy(all.begin(), all.end(), out + (b * heads + h) * width);
    }
  }
  return result;
}

}  // namespace hopmix::nn
