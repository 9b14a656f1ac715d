// Runs tasks on the threads of OpenMP, individually or in teams.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <omp.h>

#include "hwy/cache_control.h"

namespace hopmix::kernels {

/// With fewer entries than this, waking the threads costs more than it saves.
inline constexpr int64_t kWorthThreads = 4096;

/// The same for a team, whose members exchange results.
inline constexpr int64_t kWorthTeam = 1 << 17;

/// The largest team size: the number of threads.
inline constexpr int64_t kAnyTeam = int64_t{1} << 20;

/// Calls body(0) ... body(count - 1) in any order and, if there are at least `entries` entries of
/// work, in parallel. A task owns its outputs and sums in a fixed order, so results do not depend
/// on the number of threads. Rethrows the first exception (such as std::bad_alloc).
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

/// Where the members of a team wait for each other: they spin, because a block takes microseconds
/// and waking a sleeping thread takes as long, and after a while they yield, so that others may
/// run.
class Team {
 public:
  explicit Team(int64_t size) : size_(size) {}

  /// Waits until all members arrive; returns false once one has failed.
  bool wait() {
    const int64_t round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
    }
    for (int64_t tries = 0; round_.load(std::memory_order_acquire) == round; ++tries) {
      if (failed_.load(std::memory_order_acquire)) return false;
      if (tries < kSpins) {
        hwy::Pause();
      } else {
        std::this_thread::yield();
      }
    }
    return !failed_.load(std::memory_order_acquire);
  }

  void fail() { failed_.store(true, std::memory_order_release); }

 private:
  static constexpr int64_t kSpins = 4000;

  const int64_t size_;
  std::atomic<int64_t> arrived_ = 0, round_ = 0;
  std::atomic<bool> failed_ = false;
};

/// Thrown by sync() after another member has failed.
struct TeamFailed {};

/// A member of a team that works on one task. In a team of one, sync() costs nothing.
class Member {
 public:
  Member() = default;
  Member(int64_t rank, int64_t size, Team* team) : rank_(rank), size_(size), team_(team) {}

  int64_t size() const { return size_; }

  /// Waits until all members arrive. Throws if one of them never will.
  void sync() const {
    if (team_ != nullptr && !team_->wait()) throw TeamFailed();
  }

  /// Call instead of any further sync(): makes the others stop at their next one.
  void fail() const {
    if (team_ != nullptr) team_->fail();
  }

  /// This member's share of [begin, end), in whole pieces of `grain`.
  std::pair<int64_t, int64_t> share(int64_t begin, int64_t end, int64_t grain = 1) const {
    const int64_t pieces = (end - begin + grain - 1) / grain;
    const auto edge = [&](int64_t rank) {
      return std::min(end, begin + pieces * rank / size_ * grain);
    };
    return {edge(rank_), edge(rank_ + 1)};
  }

  /// The order of the shares: rank 0 has the first.
  int64_t rank() const { return rank_; }

 private:
  int64_t rank_ = 0, size_ = 1;
  Team* team_ = nullptr;
};

/// Like parallel_tasks, but if there are fewer tasks than threads, several threads work on one
/// task: shared = make(task, size) once per task, then work(task, shared, member) concurrently by
/// each of its `size` members. A task has at most `most` members. If a member throws, the others of
/// its team stop at their next sync(), before anything they share is destroyed.
template <typename Make, typename Work>
void parallel_teams(int64_t tasks, int64_t entries, int64_t most, const Make& make,
                    const Work& work) {
  const int64_t threads = entries >= kWorthThreads ? omp_get_max_threads() : 1;
  if (tasks == 0) return;
  if (tasks * 2 > threads || most < 2 || entries < kWorthTeam) {
    parallel_tasks(tasks, entries, [&](int64_t task) {
      auto shared = make(task, 1);
      work(task, shared, Member());
    });
    return;
  }
  using Shared = decltype(make(int64_t{0}, int64_t{1}));
  std::exception_ptr error;
  std::mutex mutex;
  std::vector<std::unique_ptr<Team>> teams;
  std::vector<std::optional<Shared>> shared(tasks);
  int64_t size = 1;
  const auto guarded = [&](const auto& body) {
    try {
      body();
      return true;
    } catch (const TeamFailed&) {  // of no interest: the first to fail has said why
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
    return false;
  };
#pragma omp parallel num_threads(static_cast <int>(std::min(threads, tasks * most)))
  {
#pragma omp single
    {
      // The runtime may provide fewer threads than requested.
      size = std::max<int64_t>(1, omp_get_num_threads() / tasks);
      if (!guarded([&] {
            for (int64_t task = 0; task < tasks; ++task) {
              teams.push_back(std::make_unique<Team>(size));
            }
          })) {
        teams.clear();
      }
    }
    const int64_t first = omp_get_thread_num() / size, count = omp_get_num_threads() / size;
    const int64_t rank = omp_get_thread_num() % size;
    if (!teams.empty() && first < count) {
      for (int64_t task = first; task < tasks; task += count) {
        const Member member(rank, size, size > 1 ? teams[task].get() : nullptr);
        const bool done = guarded([&] {
          if (rank == 0) shared[task].emplace(make(task, size));
          member.sync();
          work(task, *shared[task], member);
          member.sync();
        });
        if (!done) {
          member.fail();
        } else if (rank == 0) {
          shared[task].reset();
        }
      }
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace hopmix::kernels
