#include "hopmix/kernels/rows/pipeline.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "hopmix/kernels/base/test_data.h"

namespace hopmix::kernels {
namespace {

// Runs `stages` over `count` blocks by one team of `threads`.
template <typename Make>
void run_team(const Rows& rows, int threads, int64_t count, const Make& stages) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  parallel_teams(
      1, kWorthTeam, kAnyTeam, [&](int64_t, int64_t team) { return Crews(rows, team); },
      [&](int64_t, const Crews& crews, const Member& member) {
        Pipeline(member, crews).run(count, stages(crews));
      });
  omp_set_num_threads(before);
}

class PipelineTest : public ::testing::TestWithParam<std::pair<const char*, int>> {
 protected:
  Pattern pattern_{GetParam().first, 64};
  Rows rows_{pattern_};
  int threads_ = GetParam().second;
};

// Every stage of a block finds what all members of the one before it did, and a block that is
// in_work behind finds its place free.
TEST_P(PipelineTest, StagesOfABlockFollowOneAnother) {
  constexpr int64_t kCount = 50;
  const std::vector<Crew> order = {Crew::kKeys,   Crew::kKeys,   Crew::kStates,
                                   Crew::kStates, Crew::kStates, Crew::kKeys};
  std::vector<std::atomic<int64_t>> calls(kCount * order.size());
  std::atomic<int64_t> wrong = 0;
  run_team(rows_, threads_, kCount, [&](const Crews& crews) {
    const auto members = [&crews](Crew crew) {
      return crew == Crew::kKeys ? crews.keys : crews.states;
    };
    std::vector<Stage> stages;
    for (size_t s = 0; s < order.size(); ++s) {
      stages.push_back({order[s], [&, crews, members, s](int64_t block, const Member& crew) {
                          const auto done = [&](int64_t n, size_t stage) {
                            return calls[n * order.size() + stage] == members(order[stage]);
                          };
                          if (crew.size() != members(order[s])) ++wrong;
                          if (s > 0 && !done(block, s - 1)) {
                            const bool alone = order[s] == order[s - 1] && crew.size() == 1;
                            if (!alone) ++wrong;
                          }
                          if (s == 0 && block >= crews.in_work &&
                              !done(block - crews.in_work, order.size() - 1)) {
                            ++wrong;
                          }
                          ++calls[block * order.size() + s];
                        }});
    }
    return stages;
  });
  EXPECT_EQ(wrong, 0);
  const Crews crews(rows_, threads_);
  for (int64_t n = 0; n < kCount; ++n) {
    for (size_t s = 0; s < order.size(); ++s) {
      EXPECT_EQ(calls[n * order.size() + s], order[s] == Crew::kKeys ? crews.keys : crews.states)
          << "block " << n << " stage " << s;
    }
  }
}

TEST_P(PipelineTest, AMemberThatFailsStopsTheOthers) {
  const auto fail_in = [&](Crew which) {
    run_team(rows_, threads_, 50, [&](const Crews&) {
      const auto run = [which](Crew crew) {
        return Stage{crew, [=](int64_t block, const Member& member) {
                       if (crew == which && block == 7 && member.rank() == 0) {
                         throw std::runtime_error("out of memory");
                       }
                     }};
      };
      return std::vector<Stage>{run(Crew::kKeys), run(Crew::kStates), run(Crew::kKeys)};
    });
  };
  EXPECT_THROW(fail_in(Crew::kKeys), std::runtime_error);
  EXPECT_THROW(fail_in(Crew::kStates), std::runtime_error);
}

TEST_P(PipelineTest, NoBlocks) {
  run_team(rows_, threads_, 0, [&](const Crews&) {
    return std::vector<Stage>{{Crew::kKeys, [](int64_t, const Member&) { FAIL(); }},
                              {Crew::kStates, [](int64_t, const Member&) { FAIL(); }}};
  });
}

INSTANTIATE_TEST_SUITE_P(Teams, PipelineTest,
                         ::testing::Values(std::pair{"k^2+1", 1}, std::pair{"k^2+1", 2},
                                           std::pair{"k^2+1", 3}, std::pair{"k^2+1", 4},
                                           std::pair{"cached(k^2+1)", 1},
                                           std::pair{"cached(k^2+1)", 2},
                                           std::pair{"cached(k^2+1)", 3}));

}  // namespace
}  // namespace hopmix::kernels
