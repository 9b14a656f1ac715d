#include "hopmix/tasks/rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>

#include <algorithm>
#include <unordered_map>

#include "hopmix/base/error.h"
#include "hopmix/base/nearest.h"

namespace hopmix::tasks {

std::function<Batch(int64_t batch, uint64_t seed)> by_rows(
    int64_t length, std::function<void(Rng& rng, const Row& row)> fill, int64_t numbers,
    int64_t readouts) {
  return [length, fill = std::move(fill), numbers, readouts](int64_t batch, uint64_t seed) {
    if (batch < 1) throw Error("batch = " + std::to_string(batch) + ": must be at least 1");
    const auto shape = [&](int64_t each) {
      return each == 1 ? std::vector<int64_t>{batch, length}
                       : std::vector<int64_t>{batch, length, each};
    };
    Batch result;
    result.tokens = at::empty(shape(numbers), at::kLong);
    result.targets = at::full(shape(readouts), kNoTarget, at::kLong);
    result.slices = at::full_like(result.targets, kNoSlice);
    for (int64_t r = 0; r < batch; ++r) {
      const auto row_of = [&](at::Tensor& tensor) {
        const int64_t size = tensor.numel() / batch;
        return std::span<int64_t>(tensor.mutable_data_ptr<int64_t>() + r * size,
                                  static_cast<size_t>(size));
      };
      Rng rng(seed, static_cast<uint64_t>(r));
      fill(rng, Row{row_of(result.tokens), row_of(result.targets), row_of(result.slices)});
    }
    return result;
  };
}

void Text::say(int64_t token, int64_t target, int64_t slice) {
  tokens.push_back(token);
  targets.push_back(target);
  slices.push_back(slice);
}

void Text::drop_last() {
  tokens.pop_back();
  targets.pop_back();
  slices.pop_back();
}

void Text::align_right(int64_t pad, const Row& row) const {
  const auto first = static_cast<std::ptrdiff_t>(row.tokens.size() - tokens.size());
  std::fill_n(row.tokens.begin(), first, pad);
  std::copy(tokens.begin(), tokens.end(), row.tokens.begin() + first);
  std::copy(targets.begin(), targets.end(), row.targets.begin() + first);
  std::copy(slices.begin(), slices.end(), row.slices.begin() + first);
}

std::vector<int64_t> draw_distinct(Rng& rng, int64_t n, int64_t count) {
  std::unordered_map<int64_t, int64_t> moved;  // the entries of the shuffled 0..n-1 that have moved
  const auto at = [&](int64_t place) {
    const auto found = moved.find(place);
    return found == moved.end() ? place : found->second;
  };
  std::vector<int64_t> drawn;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = i + rng.below(n - i);
    drawn.push_back(at(place));
    moved[place] = at(i);
  }
  return drawn;
}

void check_range(const std::string& name, int64_t value, int64_t least, int64_t most,
                 const std::string& note) {
  if (value >= least && value <= most) return;
  throw Error(name + " = " + std::to_string(value) + ": must be from " + std::to_string(least) +
              " to " + std::to_string(most) + note);
}

void check_choice(const std::string& name, const std::string& value,
                  const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  throw Error(name + " = '" + value + "': must be a known name" + suggestion(value, choices));
}

void check_even(const std::string& name, int64_t value, int64_t least, int64_t most) {
  check_range(name, value, least, most);
  if (value % 2 != 0) throw Error(name + " = " + std::to_string(value) + ": must be even");
}

}  // namespace hopmix::tasks
