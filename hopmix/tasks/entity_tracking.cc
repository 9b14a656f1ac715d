#include "hopmix/tasks/entity_tracking.h"

#include <algorithm>
#include <set>
#include <vector>

#include "hopmix/tasks/rows.h"

namespace hopmix::tasks {
namespace {

// Tokens from `objects` on, in this order.
enum Word : int64_t {
  kNothing,
  kStop,
  kBox,
  kContains,
  kMove,
  kPut,
  kRemove,
  kContents,
  kOf,
  kFrom,
  kTo,
  kInto,
  kWords
};

using Items = std::set<int64_t>;

// The state of the boxes, and the text that describes its changes.
class Story {
 public:
  Story(const EntityTrackingConfig& config, Rng& rng)
      : config_(config),
        rng_(rng),
        boxes_(static_cast<size_t>(config.boxes)),
        touched_(boxes_.size()) {
    for (int64_t object = 0; object < config.objects; ++object) unused_.push_back(object);
    for (Items& box : boxes_) add_new(box, rng.below(config.max_items + 1));
  }

  void tell_state() {
    for (size_t box = 0; box < boxes_.size(); ++box) tell_box(box, /*ask=*/false);
  }

  void operate() {
    while (true) {
      const int64_t kind = rng_.below(3);
      const size_t box = draw_box(boxes_.size());
      if (kind == 0 ? move(box) : kind == 1 ? put(box) : remove(box)) return;
    }
  }

  void ask(size_t box) { tell_box(box, /*ask=*/true); }

  const Text& text() const { return text_; }

 private:
  size_t draw_box(size_t count) {
    return static_cast<size_t>(rng_.below(static_cast<int64_t>(count)));
  }

  int64_t word(Word word) const { return config_.objects + word; }

  void say(std::initializer_list<Word> words) {
    for (const Word w : words) text_.say(word(w));
  }

  void say_box(size_t box) {
    say({kBox});
    text_.say(word(kWords) + static_cast<int64_t>(box));
  }

  void say_items(const Items& items) {
    for (const int64_t item : items) text_.say(item);
  }

  // Box 0 contains apple key .
  void tell_box(size_t box, bool ask) {
    std::vector<int64_t> words(boxes_[box].begin(), boxes_[box].end());
    words.push_back(words.empty() ? word(kNothing) : word(kStop));
    const auto say_and_ask = [&](int64_t token, int64_t next) {
      text_.say(token, ask ? next : kNoTarget, ask ? touched_[box] : kNoSlice);
    };
    say_box(box);
    say_and_ask(word(kContains), words[0]);
    for (size_t i = 0; i + 1 < words.size(); ++i) say_and_ask(words[i], words[i + 1]);
    text_.say(words.back());
    if (words.back() != word(kStop)) say({kStop});
  }

  bool move(size_t from) {
    if (boxes_[from].empty()) return false;
    size_t to = draw_box(boxes_.size() - 1);
    if (to >= from) ++to;
    const Items items = draw_part(boxes_[from]);
    if (static_cast<int64_t>(items.size()) > room(to)) return false;
    say({kMove});
    if (config_.move_contents && items == boxes_[from]) {
      say({kContents, kOf});
    } else {
      say_items(items);
      say({kFrom});
    }
    say_box(from);
    say({kTo});
    say_box(to);
    say({kStop});
    take(from, items);
    boxes_[to].insert(items.begin(), items.end());
    ++touched_[from];
    ++touched_[to];
    return true;
  }

  bool put(size_t box) {
    if (room(box) == 0) return false;
    Items items;
    add_new(items, 1 + rng_.below(room(box)));
    say({kPut});
    say_items(items);
    say({kInto});
    say_box(box);
    say({kStop});
    boxes_[box].insert(items.begin(), items.end());
    ++touched_[box];
    return true;
  }

  bool remove(size_t box) {
    if (boxes_[box].empty()) return false;
    const Items items = draw_part(boxes_[box]);
    say({kRemove});
    say_items(items);
    say({kFrom});
    say_box(box);
    say({kStop});
    take(box, items);
    unused_.insert(unused_.end(), items.begin(), items.end());
    ++touched_[box];
    return true;
  }

  int64_t room(size_t box) const {
    return config_.max_items - static_cast<int64_t>(boxes_[box].size());
  }

  // Every nonempty subset is equally likely.
  Items draw_part(const Items& items) {
    Items part;
    while (part.empty()) {
      for (const int64_t item : items) {
        if (rng_.below(2) == 0) part.insert(item);
      }
    }
    return part;
  }

  void add_new(Items& items, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      std::swap(unused_[static_cast<size_t>(rng_.below(static_cast<int64_t>(unused_.size())))],
                unused_.back());
      items.insert(unused_.back());
      unused_.pop_back();
    }
  }

  void take(size_t box, const Items& items) {
    for (const int64_t item : items) boxes_[box].erase(item);
  }

  const EntityTrackingConfig& config_;
  Rng& rng_;
  std::vector<Items> boxes_;
  std::vector<int64_t> touched_;  // operations on each box
  std::vector<int64_t> unused_;   // objects in no box
  Text text_;
};

void fill_entity_tracking(const EntityTrackingConfig& config, Rng& rng, const Row& row) {
  Story story(config, rng);
  story.tell_state();
  for (int64_t i = 0; i < config.operations; ++i) story.operate();
  for (const int64_t box : draw_distinct(rng, config.boxes, config.queries)) {
    story.ask(static_cast<size_t>(box));
  }
  story.text().align_right(config.objects + kWords + config.boxes, row);
}

}  // namespace

Task entity_tracking_task(const EntityTrackingConfig& config, const std::string& where) {
  constexpr int64_t most = 1 << 10;  // keeps the length below kMaxLength
  check_range(where + "boxes", config.boxes, 2, most);
  check_range(where + "max_items", config.max_items, 1, most);
  check_range(where + "objects", config.objects, config.boxes * config.max_items, kMaxLength,
              ": at least boxes * max_items");
  check_range(where + "operations", config.operations, 0, most);
  check_range(where + "queries", config.queries, 1, config.boxes, ", the number of boxes");
  // `Box 0 contains a b c .` and `Move a b c from Box 0 to Box 1 .`
  const int64_t length = (config.boxes + config.queries) * (config.max_items + 4) +
                         config.operations * (config.max_items + 8);
  return {.name = "entity_tracking",
          .vocabulary = config.objects + kWords + config.boxes + 1,
          .length = length,
          .slice_name = "operations",
          .chance = 100.0 / static_cast<double>(config.objects + 2),
          .sample = by_rows(length, [config](Rng& rng, const Row& row) {
            fill_entity_tracking(config, rng, row);
          })};
}

TaskEntry entity_tracking_entry() {
  return {
      .info = {.name = "entity_tracking",
               .description = "the contents of each box after objects are put, moved and removed",
               .keys = {{"boxes", "number of boxes"},
                        {"objects", "number of distinct objects"},
                        {"max_items", "most objects in a box"},
                        {"operations", "number of put, move and remove operations"},
                        {"queries", "boxes asked about, all different"},
                        {"move_contents",
                         "a move of a whole box says contents instead of naming objects"}}},
      .make = [](config::Table& table) {
        EntityTrackingConfig config;
        config.boxes = table.get("boxes", config.boxes);
        config.objects = table.get("objects", config.objects);
        config.max_items = table.get("max_items", config.max_items);
        config.operations = table.get("operations", config.operations);
        config.queries = table.get("queries", config.queries);
        config.move_contents = table.get("move_contents", config.move_contents);
        return entity_tracking_task(config, table.name(""));
      }};
}

}  // namespace hopmix::tasks
