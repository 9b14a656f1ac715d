// A pass over the rows of a head: blocks of rows, what enters with each, the steps of a block, and
// who of a team does what. A kernel names its steps; no bit depends on how a team shares them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <vector>

#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/base/parallel.h"
#include "hopmix/kernels/base/sequences.h"
#include "hopmix/kernels/rows/head_rows.h"
#include "hopmix/kernels/rows/row_blocks.h"
#include "hopmix/kernels/rows/row_loops.h"
#include "hopmix/kernels/rows/rows.h"
#include "hopmix/kernels/rows/slots.h"

namespace hopmix::kernels {

/// Which arrays a step sweeps. Each half of a team sweeps its own, which therefore stay in the L1
/// and L2 caches of its cores; what one half hands to the other is a number or two per read, in
/// sequence.
enum class Sweeps { kKeys, kStates };

enum class Order { kFirstToLast, kLastToFirst };

/// Rows [first, last), in work.
struct Block {
  int64_t head;   // as given to run()
  int64_t place;  // no other block has it while this one is in work
  int64_t first, last;
  const Slots& slots;
};

struct Columns {
  int64_t from, to;
};

/// One step of a block, done before the next. A Part is what is computed for the reads of some of
/// its rows.
///   enter    tokens get their slots, in any order, in the arrays that it sweeps;
///   load     makes the part of rows [begin, end), of kKeys: each of its members has one;
///   rows     works on each part by itself;
///   columns  works on one part after another, in the order of the pass, on some columns alone.
template <typename Kernel>
struct Step {
  using Part = typename Kernel::Part;
  using Enter = void (Kernel::*)(int64_t head, const Entering& tokens);
  using Load = void (Kernel::*)(const Block&, Part&, int64_t begin, int64_t end);
  using OnRows = void (Kernel::*)(const Block&, Part&);
  using OnColumns = void (Kernel::*)(const Block&, Part&, Columns);

  Step(Sweeps which, Enter f) : sweeps(which), enter(f) {}
  Step(Sweeps which, Load f) : sweeps(which), load(f) {}
  Step(Sweeps which, OnRows f) : sweeps(which), rows(f) {}
  Step(Sweeps which, OnColumns f) : sweeps(which), columns(f) {}

  Sweeps sweeps;
  Enter enter = nullptr;
  Load load = nullptr;
  OnRows rows = nullptr;
  OnColumns columns = nullptr;

  /// Whether it may need of the step before what other members did.
  bool waits_for(const Step& before, bool apart) const {
    const bool same_members = !apart || sweeps == before.sweeps;
    return columns || (rows && !(before.rows && same_members));
  }
};

/// How a team goes over one head of a sequence, or several in turn, and what its members share.
///
/// Apart: each half of the team is at a block of its own, and a step is one block later than a step
/// of the other half that it waits for. Together: the team does one step of one block after
/// another, as does a team of one. Where slots are used again blocks cannot overlap.
template <typename Part>
class Pass {
 public:
  using A = typename Part::Number;
  template <typename Kernel>
  using Steps = std::initializer_list<Step<Kernel>>;

  /// `heads`: whose reads are in work at once.
  Pass(const Rows& rows, int64_t length, int64_t keys, int64_t values, int64_t team,
       int64_t heads = 1)
      : rows_(rows),
        apart_(team > 1 && !rows.inherits()),
        key_members_(apart_ ? team - team / 2 : team),
        places_(!apart_     ? 1
                : team == 2 ? 3
                            : std::max(kMostInWork, team)),
        plan_(rows, length, team, heads, apart_),
        slots_(rows, length, plan_.block),
        key_width_(padded(keys)),
        value_width_(padded(values)),
        parts_(places_) {
    for (auto& parts : parts_) parts.resize(key_members_);
  }

  const BlockPlan& plan() const { return plan_; }
  const Slots& slots() const { return slots_; }
  int64_t places() const { return places_; }
  int64_t key_width() const { return key_width_; }  // these two padded
  int64_t value_width() const { return value_width_; }
  int64_t stride() const { return std::max(key_width_, value_width_); }  // of all that is by slot

  PaddedRows<A> by_slot(bool wanted = true) const {
    return {wanted ? slots_.count() : 0, stride()};
  }

  /// By each member of the team at once.
  template <typename Kernel>
  void run(Kernel& kernel, Order order, int64_t head, const Member& team, Steps<Kernel> steps) {
    Worker<Kernel> worker(*this, kernel, order, head, team);
    const bool by_columns =
        std::any_of(steps.begin(), steps.end(), [](const auto& step) { return step.columns; });
    if (!apart_) {
      worker.together(steps);
    } else if (by_columns) {
      worker.apart(steps);
    } else {
      worker.scattered(steps);
    }
  }

  /// After the last run: the memory of each part to the thread that took it.
  void give_back(const Member& team) {
    if (team.rank() >= key_members_) return;
    for (auto& parts : parts_) parts[team.rank()] = {};
  }

 private:
  static constexpr int64_t kMostInWork = 7;

  template <typename Kernel>
  class Worker;

  Rows rows_;
  bool apart_;
  int64_t key_members_, places_;
  BlockPlan plan_;
  Slots slots_;
  int64_t key_width_, value_width_;
  std::vector<std::vector<Part>> parts_;  // by place, a part by each member that sweeps keys
};

/// One member, in one run.
template <typename Part>
template <typename Kernel>
class Pass<Part>::Worker {
 public:
  Worker(Pass& pass, Kernel& kernel, Order order, int64_t head, const Member& team)
      : pass_(pass),
        kernel_(kernel),
        order_(order),
        head_(head),
        team_(team),
        own_(team.rank(), team.size(), nullptr),
        slots_(pass.slots_) {}

  void together(Steps<Kernel> steps) {
    for (int64_t n = 0; n < pass_.plan_.count(); ++n) {
      for (auto step = steps.begin(); step != steps.end(); ++step) {
        if (step != steps.begin() && step->waits_for(step[-1], /*apart=*/false)) team_.sync();
        work(*step, n);
      }
      team_.sync();
    }
  }

  void apart(Steps<Kernel> steps) {
    const int64_t keys = pass_.key_members_, rank = team_.rank();
    const Sweeps sweeps = rank < keys ? Sweeps::kKeys : Sweeps::kStates;
    own_ = rank < keys ? Member(rank, keys, nullptr)
                       : Member(rank - keys, team_.size() - keys, nullptr);
    // Who is alone has no others to wait for between two steps.
    const bool alone = team_.size() == 2;
    std::vector<int64_t> lag = {0};
    for (auto step = steps.begin() + 1; step != steps.end(); ++step) {
      const bool own = alone && step->sweeps == step[-1].sweeps;
      lag.push_back(lag.back() + (!own && step->waits_for(step[-1], /*apart=*/true)));
    }
    if (lag.back() >= pass_.places_) throw std::logic_error("a pass of too many steps");
    const int64_t count = pass_.plan_.count();
    for (int64_t now = 0; now < count + lag.back(); ++now) {
      for (size_t s = 0; s < steps.size(); ++s) {
        const int64_t n = now - lag[s];
        if (steps.begin()[s].sweeps == sweeps && n >= 0 && n < count) work(steps.begin()[s], n);
      }
      team_.sync();
    }
  }

  // No row waits for another: all tokens enter first, and then each member has whole blocks.
  void scattered(Steps<Kernel> steps) {
    const auto [begin, end] = team_.share(0, pass_.plan_.length);
    for (const Step<Kernel>& step : steps) {
      if (step.enter) (kernel_.*step.enter)(head_, {nullptr, begin, end - begin, &slots_});
    }
    team_.sync();
    Part& part = pass_.parts_[team_.rank()][0];
    for (int64_t n = team_.rank(); n < pass_.plan_.count(); n += team_.size()) {
      const Block b = block(n, team_.rank());
      for (const Step<Kernel>& step : steps) {
        if (step.load) (kernel_.*step.load)(b, part, b.first, b.last);
        if (step.rows) (kernel_.*step.rows)(b, part);
      }
    }
    part = {};  // to the thread that took it
    team_.sync();
  }

 private:
  Block block(int64_t n, int64_t place) const {
    const bool forward = order_ == Order::kFirstToLast;
    const auto [first, last] = pass_.plan_.rows(forward ? n : pass_.plan_.count() - 1 - n);
    return {head_, place, first, last, slots_};
  }

  // This member's share of a step of block n.
  void work(const Step<Kernel>& step, int64_t n) {
    const Block b = block(n, n % pass_.places_);
    std::vector<Part>& parts = pass_.parts_[b.place];
    const auto count = static_cast<int64_t>(parts.size());
    if (step.enter) {
      in_pieces(entering(n, b),
                [&](const Entering& piece) { (kernel_.*step.enter)(head_, piece); });
    } else if (step.load) {
      const auto [begin, end] = own_.share(b.first, b.last);
      (kernel_.*step.load)(b, parts[own_.rank()], begin, end);
    } else if (step.rows) {
      for (int64_t p = own_.rank(); p < count; p += own_.size()) (kernel_.*step.rows)(b, parts[p]);
    } else {
      const bool keys = step.sweeps == Sweeps::kKeys;
      const auto [from, to] = own_.share(0, keys ? pass_.key_width_ : pass_.value_width_, kPad);
      for (int64_t p = 0; p < count; ++p) {
        Part& part = parts[order_ == Order::kFirstToLast ? p : count - 1 - p];
        (kernel_.*step.columns)(b, part, {from, to});
      }
    }
  }

  // Moves the slots on to block n, once; gives this member's share of what enters with it.
  Entering entering(int64_t n, const Block& b) {
    const bool moves = n != block_;
    block_ = n;
    if (order_ == Order::kFirstToLast) {
      if (moves) slots_.forward(pass_.rows_, b.first, b.last);
      const auto [begin, end] = own_.share(b.first, b.last);
      return {nullptr, begin, end - begin, &slots_};
    }
    if (moves) slots_.backward(pass_.rows_, b.first, b.last);
    const auto [from, to] = own_.share(0, static_cast<int64_t>(slots_.entered().size()));
    return {slots_.entered().data() + from, 0, to - from, &slots_};
  }

  Pass& pass_;
  Kernel& kernel_;
  Order order_;
  int64_t head_;
  const Member& team_;
  Member own_;  // of the team, or of its half
  Slots slots_;
  int64_t block_ = -1;  // where the slots are
};

/// A task for each of `heads` in each sequence, shared by `most` members at most (parallel_teams):
/// make(sequence, head, team) once, `run` by each member.
template <typename Make, typename Task>
void for_each_head(const Sequences& all, int64_t heads, int64_t entries, int64_t most,
                   const Make& make, void (Task::*run)(const Member&)) {
  parallel_teams(
      all.count() * heads, entries, most,
      [&](int64_t task, int64_t team) { return make(task / heads, task % heads, team); },
      [&](int64_t, Task& task, const Member& member) { (task.*run)(member); });
}

/// The same for groups of `together` query heads that share a key/value head: make(group, team).
template <typename Inputs, typename Make, typename Task>
void for_each_group(const Inputs& in, int64_t together, int64_t most, const Make& make,
                    void (Task::*run)(const Member&)) {
  const int64_t groups = together == 0 ? 0 : in.heads / together;
  for_each_head(
      in.sequences, groups, in.sequences.tokens() * in.heads * in.value_width, most,
      [&](int64_t sequence, int64_t group, int64_t team) {
        return make(HeadGroup(in, sequence, group * together, together), team);
      },
      run);
}

}  // namespace hopmix::kernels
