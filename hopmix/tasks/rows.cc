#include "hopmix/tasks/rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>

#include "hopmix/base/error.h"

namespace hopmix::tasks {

std::function<Batch(int64_t batch, uint64_t seed)> by_rows(
    int64_t length, std::function<void(Rng& rng, const Row& row)> fill) {
  return [length, fill = std::move(fill)](int64_t batch, uint64_t seed) {
    if (batch < 1) throw Error("batch = " + std::to_string(batch) + ": must be at least 1");
    Batch result;
    result.tokens = at::empty({batch, length}, at::kLong);
    result.targets = at::full_like(result.tokens, kNoTarget);
    result.slices = at::full_like(result.tokens, kNoSlice);
    for (int64_t r = 0; r < batch; ++r) {
      const auto row_of = [&](at::Tensor& tensor) {
        return std::span<int64_t>(tensor.mutable_data_ptr<int64_t>() + r * length,
                                  static_cast<size_t>(length));
      };
      Rng rng(seed, static_cast<uint64_t>(r));
      fill(rng, Row{row_of(result.tokens), row_of(result.targets), row_of(result.slices)});
    }
    return result;
  };
}

void check_range(const std::string& name, int64_t value, int64_t least, int64_t most,
                 const std::string& note) {
  if (value >= least && value <= most) return;
  throw Error(name + " = " + std::to_string(value) + ": must be from " + std::to_string(least) +
              " to " + std::to_string(most) + note);
}

}  // namespace hopmix::tasks
