// Blocks of rows that go through the stages of a pass, one crew of a team behind the other.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/rows/rows.h"

namespace hopmix::kernels {

/// The halves of a team. Each sweeps arrays of its own, which so stay in the caches of its cores;
/// what goes from one to the other is a number or two a read, in sequence.
enum class Crew { kKeys, kStates };

/// What a crew does to a block: run(block, member) by each of its members at once.
struct Stage {
  Crew crew;
  std::function<void(int64_t block, const Member& member)> run;
  bool alongside = false;  // needs nothing of the stage before it
};

/// How a team works. Apart: each crew has stages of its own, and a stage is at the block behind
/// that of the stage before it. Together: the team does one stage of one block after another, as
/// does a team of one. Where slots are used again blocks cannot overlap.
struct Crews {
  bool apart;
  int64_t keys, states;  // members of each
  int64_t in_work;       // blocks at once

  Crews(const Rows& rows, int64_t team)
      : apart(team > 1 && !rows.inherits()),
        keys(apart ? team - team / 2 : team),
        states(apart ? team / 2 : team),
        in_work(!apart      ? 1
                : team == 2 ? 3
                            : kMostStages) {}

  static constexpr int64_t kMostStages = 7;
};

class Pipeline {
 public:
  Pipeline(const Member& team, const Crews& crews) : team_(team), crews_(crews) {
    const int64_t rank = team.rank();
    if (!crews.apart || rank < crews.keys) {
      own_ = Member(rank, crews.keys, nullptr);
    } else {
      crew_ = Crew::kStates;
      own_ = Member(rank - crews.keys, crews.states, nullptr);
    }
  }

  /// Blocks 0 ... count - 1 through all stages: kMostStages at most, not counting those alongside.
  void run(int64_t count, const std::vector<Stage>& stages) const {
    if (crews_.apart) return run_apart(count, stages);
    for (int64_t block = 0; block < count; ++block) {
      for (const Stage& stage : stages) {
        stage.run(block, own_);
        team_.sync();
      }
    }
  }

 private:
  void run_apart(int64_t count, const std::vector<Stage>& stages) const {
    // Who is alone has no others to wait for between two stages.
    const bool alone = team_.size() == 2;
    std::vector<int64_t> lag = {0};
    for (size_t s = 1; s < stages.size(); ++s) {
      const bool own = alone && stages[s].crew == stages[s - 1].crew;
      lag.push_back(lag.back() + (own || stages[s].alongside ? 0 : 1));
    }
    for (int64_t step = 0; step < count + lag.back(); ++step) {
      for (size_t s = 0; s < stages.size(); ++s) {
        const int64_t block = step - lag[s];
        if (stages[s].crew == crew_ && block >= 0 && block < count) stages[s].run(block, own_);
      }
      team_.sync();
    }
  }

  const Member& team_;
  const Crews& crews_;
  Crew crew_ = Crew::kKeys;
  Member own_;
};

/// What the first crew makes of each block in work, a part by each member of it.
template <typename Part>
class PartsInWork {
 public:
  explicit PartsInWork(const Crews& crews) : crews_(crews), parts_(crews.in_work) {
    for (auto& parts : parts_) parts.resize(crews.keys);
  }

  std::vector<Part>& of(int64_t block) { return parts_[block % crews_.in_work]; }

  /// The memory of each part to the thread that took it.
  void give_back(const Member& team) {
    Pipeline(team, crews_).run(1, {{Crew::kKeys, [&](int64_t, const Member& crew) {
                                      for (auto& parts : parts_) parts[crew.rank()] = {};
                                    }}});
  }

 private:
  Crews crews_;
  std::vector<std::vector<Part>> parts_;
};

/// visit(part) for those parts of a block that are this member's: a member of the first crew made
/// each.
template <typename Parts, typename Visit>
void for_own(Parts& parts, const Member& crew, const Visit& visit) {
  for (int64_t part = crew.rank(); part < static_cast<int64_t>(parts.size()); part += crew.size()) {
    visit(parts[part]);
  }
}

}  // namespace hopmix::kernels
