#include "hopmix/kernels/base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <stdexcept>
#include <string>

#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

TEST(ParallelTasks, ThrowsWhatATaskThrew) {
  EXPECT_THROW(parallel_tasks(100, kWorthThreads,
                              [](int64_t task) {
                                if (task == 57) throw std::bad_alloc();
                              }),
               std::bad_alloc);
}

// Four threads while it lives.
struct FourThreads {
  int before = omp_get_max_threads();
  FourThreads() { omp_set_num_threads(4); }
  ~FourThreads() { omp_set_num_threads(before); }
};

TEST(ParallelTeams, MembersShareATask) {
  const FourThreads guard;
  for (const int64_t tasks : {1, 2, 3}) {
    std::vector<std::atomic<int64_t>> sums(tasks);
    parallel_teams(
        tasks, kWorthTeam, kAnyTeam, [](int64_t, int64_t size) { return size; },
        [&](int64_t task, int64_t size, const Member& member) {
          ASSERT_EQ(member.size(), size);
          const auto [begin, end] = member.share(0, 10);
          for (int64_t i = begin; i < end; ++i) sums[task] += i + task;
        });
    for (int64_t task = 0; task < tasks; ++task) EXPECT_EQ(sums[task], 45 + 10 * task);
  }
}

// A member that comes late must not take the failure for a reason to stay away: the others would
// wait for it for ever.
TEST(ParallelTeams, ThrowsWhatMakeThrew) {
  const FourThreads guard;
  for (int n = 0; n < 200; ++n) {
    std::atomic<int> worked = 0;
    EXPECT_THROW(
        parallel_teams(
            1, kWorthTeam, kAnyTeam, [](int64_t, int64_t) -> int { throw std::bad_alloc(); },
            [&](int64_t, int, const Member&) { ++worked; }),
        std::bad_alloc);
    EXPECT_EQ(worked, 0);
  }
}

// Any member may be out of memory between any two calls of sync(), and what it should have written
// is then unfinished: none may go on with it, nor find it gone.
TEST(ParallelTeams, AFailureStopsTheTeamBeforeWhatItSharesGoes) {
  const FourThreads guard;
  struct Shared {
    std::atomic<int>* users;
    std::atomic<bool>* in_use_when_gone;
    bool moved = false;
    Shared(std::atomic<int>* u, std::atomic<bool>* gone) : users(u), in_use_when_gone(gone) {}
    Shared(Shared&& other) : users(other.users), in_use_when_gone(other.in_use_when_gone) {
      other.moved = true;
    }
    ~Shared() {
      if (!moved && *users > 0) *in_use_when_gone = true;
    }
  };
  struct User {
    std::atomic<int>& users;
    explicit User(std::atomic<int>& u) : users(u) { ++users; }
    ~User() { --users; }
  };
  for (int64_t rank = 0; rank < 4; ++rank) {
    for (int repetition = 0; repetition < 50; ++repetition) {
      std::atomic<int> users = 0, beyond = 0;
      std::atomic<bool> gone = false;
      EXPECT_THROW(
          parallel_teams(
              1, kWorthTeam, kAnyTeam, [&](int64_t, int64_t) { return Shared(&users, &gone); },
              [&](int64_t, Shared&, const Member& member) {
                const User user(users);
                member.sync();
                if (member.rank() == rank % member.size()) {
                  throw std::runtime_error("member " + std::to_string(rank));
                }
                member.sync();
                ++beyond;
                member.sync();
              }),
          std::runtime_error);
      EXPECT_EQ(beyond, 0) << "rank " << rank;
      EXPECT_FALSE(gone) << "rank " << rank;
    }
  }
}

}  // namespace
}  // namespace hopmix::kernels
