#include "hopmix/pattern/last_use.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace hopmix {

LastUse last_use(const Pattern& pattern) {
  const int64_t n = pattern.size();
  std::vector<int32_t> last(n, -1), cols;
  for (int64_t i = 0; i < n; ++i) {
    pattern.row(i, cols);
    for (const int32_t j : cols) last[j] = static_cast<int32_t>(i);
  }
  LastUse result{std::vector<int32_t>(n, -1), std::vector<int32_t>(n + 1, 0)};
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> free;  // the lowest first
  int32_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    pattern.row(i, cols);
    for (const int32_t j : cols) {
      if (last[j] == i) free.push(result.slot[j]);
    }
    if (last[i] > i) {
      if (free.empty()) free.push(count++);
      result.slot[i] = free.top();
      free.pop();
    }
    result.used[i + 1] = count;
  }
  return result;
}

}  // namespace hopmix
