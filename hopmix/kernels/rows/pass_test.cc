#include "hopmix/kernels/rows/pass.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <vector>

namespace hopmix::kernels {
namespace {

constexpr int64_t kKeyWidth = 48, kValueWidth = 64;

// A kernel that computes nothing: each step notes what was done to which row, and what it needs and
// does not find.
class Recorder {
 public:
  using enum Sweeps;

  struct Part {
    using Number = float;
    int64_t begin = 0, end = 0;
  };

  Recorder(const Rows& rows, int64_t length, int64_t team)
      : pass_(rows, length, kKeyWidth, kValueWidth, team),
        entered_keys_(length),
        entered_values_(length),
        loaded_(length),
        weighed_(length),
        summed_(length),
        values_(length),
        keys_(length),
        in_place_(pass_.places()) {
    for (auto& first : in_place_) first = -1;
  }

  void run(Order order, const Member& team) {
    pass_.run(*this, order, 0, team,
              {{kStates, &Recorder::enter_values},
               {kKeys, &Recorder::enter_keys},
               {kKeys, &Recorder::load},
               {kKeys, &Recorder::weigh},
               {kStates, &Recorder::sum},
               {kStates, &Recorder::values},
               {kKeys, &Recorder::keys}});
    pass_.give_back(team);
  }

  void run_without_columns(Order order, const Member& team) {
    if (team.rank() == 0) ends_early_ = true;
    team.sync();
    pass_.run(*this, order, 0, team,
              {{kStates, &Recorder::enter_values},
               {kKeys, &Recorder::enter_keys},
               {kKeys, &Recorder::load},
               {kKeys, &Recorder::weigh},
               {kStates, &Recorder::sum}});
  }

  void run_until(int64_t row, Sweeps which, const Member& team) {
    if (team.rank() == 0) fails_at_ = row;
    team.sync();
    const auto step = [&](Sweeps of) { return which == of ? &Recorder::fail : &Recorder::pass; };
    pass_.run(*this, Order::kFirstToLast, 0, team,
              {{kKeys, &Recorder::load},
               {kKeys, step(kKeys)},
               {kStates, step(kStates)},
               {kKeys, &Recorder::keys}});
  }

  void expect_all_done(bool columns) const {
    EXPECT_EQ(wrong_, 0);
    for (size_t i = 0; i < loaded_.size(); ++i) {
      EXPECT_EQ(entered_keys_[i], 1) << i;
      EXPECT_EQ(entered_values_[i], 1) << i;
      EXPECT_EQ(loaded_[i], 1) << i;
      EXPECT_EQ(weighed_[i], 1) << i;
      EXPECT_EQ(summed_[i], 1) << i;
      EXPECT_EQ(values_[i], columns ? kValueWidth : 0) << i;
      EXPECT_EQ(keys_[i], columns ? kKeyWidth : 0) << i;
    }
  }

 private:
  using Counts = std::vector<std::atomic<int64_t>>;

  void need(const Counts& counts, int64_t begin, int64_t end, int64_t wanted) {
    for (int64_t i = begin; i < end; ++i) wrong_ += counts[i] != wanted;
  }
  static void add(Counts& counts, int64_t begin, int64_t end, int64_t n) {
    for (int64_t i = begin; i < end; ++i) counts[i] += n;
  }

  void enter_keys(int64_t, const Entering& tokens) { count(tokens, entered_keys_); }
  void enter_values(int64_t, const Entering& tokens) { count(tokens, entered_values_); }
  static void count(const Entering& tokens, Counts& entered) {
    for (int64_t n = 0; n < tokens.count; ++n) ++entered[tokens.token(n)];
  }
  void load(const Block& b, Part& part, int64_t begin, int64_t end) {
    const int64_t before = in_place_[b.place].exchange(b.first);
    if (before >= 0 && before != b.first && !ends_early_) {
      need(keys_, before, before + 1, kKeyWidth);
    }
    part = {begin, end};
    add(loaded_, begin, end, 1);
  }
  void weigh(const Block& b, Part& part) {
    need(entered_keys_, b.first, b.last, 1);
    need(loaded_, part.begin, part.end, 1);
    add(weighed_, part.begin, part.end, 1);
  }
  void sum(const Block& b, Part& part) {
    need(entered_values_, b.first, b.last, 1);
    need(weighed_, part.begin, part.end, 1);
    add(summed_, part.begin, part.end, 1);
  }
  void values(const Block& b, Part& part, Columns c) {
    need(summed_, b.first, b.last, 1);
    add(values_, part.begin, part.end, c.to - c.from);
  }
  void keys(const Block& b, Part& part, Columns c) {
    if (fails_at_ < 0) need(values_, b.first, b.last, kValueWidth);
    add(keys_, part.begin, part.end, c.to - c.from);
  }
  void pass(const Block&, Part&) {}
  void fail(const Block&, Part& part) {
    if (part.begin <= fails_at_ && fails_at_ < part.end) throw std::runtime_error("out of memory");
  }

  Pass<Part> pass_;
  Counts entered_keys_, entered_values_, loaded_, weighed_, summed_;
  Counts values_, keys_;  // columns
  Counts in_place_;
  std::atomic<int64_t> wrong_ = 0;
  int64_t fails_at_ = -1;
  bool ends_early_ = false;
};

// work(recorder, member) by each member of one team of `threads`.
template <typename Check, typename Work>
void run_team(const Rows& rows, int64_t length, int threads, const Check& check, const Work& work) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  parallel_teams(
      1, kWorthTeam, kAnyTeam,
      [&](int64_t, int64_t team) { return std::make_unique<Recorder>(rows, length, team); },
      [&](int64_t, std::unique_ptr<Recorder>& recorder, const Member& member) {
        work(*recorder, member);
        member.sync();
        if (member.rank() == 0) check(*recorder);
      });
  omp_set_num_threads(before);
}

class PassTest : public ::testing::TestWithParam<std::pair<const char*, int>> {
 protected:
  static constexpr int64_t kLength = 3000;
  Pattern pattern_{GetParam().first, kLength};
  Rows rows_{pattern_};
  int threads_ = GetParam().second;
};

// Every step of a block finds what all members did in those before it, and the place of a block is
// free when it is loaded.
TEST_P(PassTest, StepsOfABlockFollowOneAnother) {
  for (const Order order : {Order::kFirstToLast, Order::kLastToFirst}) {
    run_team(
        rows_, kLength, threads_, [](Recorder& r) { r.expect_all_done(/*columns=*/true); },
        [&](Recorder& r, const Member& member) { r.run(order, member); });
  }
}

TEST_P(PassTest, StepsOfABlockWithoutColumns) {
  run_team(
      rows_, kLength, threads_, [](Recorder& r) { r.expect_all_done(/*columns=*/false); },
      [&](Recorder& r, const Member& member) {
        r.run_without_columns(Order::kFirstToLast, member);
      });
}

TEST_P(PassTest, AMemberThatFailsStopsTheOthers) {
  for (const Sweeps which : {Sweeps::kKeys, Sweeps::kStates}) {
    EXPECT_THROW(run_team(
                     rows_, kLength, threads_, [](Recorder&) {},
                     [&](Recorder& r, const Member& member) { r.run_until(1000, which, member); }),
                 std::runtime_error);
  }
}

TEST_P(PassTest, NoRows) {
  run_team(
      rows_, 0, threads_, [](Recorder& r) { r.expect_all_done(/*columns=*/true); },
      [&](Recorder& r, const Member& member) { r.run(Order::kLastToFirst, member); });
}

INSTANTIATE_TEST_SUITE_P(Teams, PassTest,
                         ::testing::Values(std::pair{"k^2+1", 1}, std::pair{"k^2+1", 2},
                                           std::pair{"k^2+1", 3}, std::pair{"k^2+1", 4},
                                           std::pair{"cached(k^2+1)", 1},
                                           std::pair{"cached(k^2+1)", 2},
                                           std::pair{"cached(k^2+1)", 3}));

}  // namespace
}  // namespace hopmix::kernels
