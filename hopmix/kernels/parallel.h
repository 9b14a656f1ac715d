// Independent tasks on the threads of OpenMP.
#pragma once

#include <cstdint>
#include <exception>

namespace hopmix::kernels {

/// Below this many entries waking the threads costs more than they save.
inline constexpr int64_t kWorthThreads = 4096;

/// Calls body(0) ... body(count - 1), in any order and, when there are `entries` enough to work on,
/// at once. A task owns its outputs and sums in its own order, so results do not depend on the
/// number of threads. The first exception (memory, say) is thrown again here.
template <typename Body>
void parallel_tasks(int64_t count, int64_t entries, const Body& body) {
  std::exception_ptr error;
#pragma omp parallel for schedule(dynamic) if (entries >= kWorthThreads)
  for (int64_t task = 0; task < count; ++task) {
    try {
      body(task);
    } catch (...) {
#pragma omp critical(hopmix_parallel_tasks)
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace hopmix::kernels
