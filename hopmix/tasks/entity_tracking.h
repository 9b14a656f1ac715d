// Entity tracking: boxes, what is done to them, and what is in them in the end.
#pragma once

#include <cstdint>
#include <string>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct EntityTrackingConfig {
  int64_t boxes = 7;          // from 2
  int64_t objects = 30;       // from boxes * max_items
  int64_t max_items = 3;      // in a box, from 1
  int64_t operations = 12;    // from 0
  int64_t queries = 7;        // boxes asked, all different; from 1 to boxes
  bool move_contents = true;  // a move of all that is in a box does not name it
};

/// The boxes of "Entity Tracking in Language Models" (arXiv 2305.02363), which "Chain and Causal
/// Attention for Efficient Entity Tracking" (arXiv 2410.05565) learns; a token is a word. First the
/// state, `Box 0 contains apple key .`, then operations, then questions in the same form:
///
///     Move apple from Box 0 to Box 3 .       Move contents of Box 0 to Box 3 .
///     Put book into Box 3 .                  Remove apple key from Box 0 .
///
/// An empty box `contains nothing .`; objects stand in the order of their numbers. A box starts
/// with 0..max_items objects, uniformly. An operation is one of the three kinds and a box, drawn
/// again until it can be done: Move and Remove take a part of what is there, every part but the
/// empty one equally likely, Put as many objects as it draws from 1 to the room left. With
/// `move_contents`, the box of a move may have to be followed back through all before it.
///
/// A question asks at `contains` and at each object for the next object, and for the full stop
/// after the last; at `contains` for `nothing` if there is none. Padding fills the left up to the
/// longest text. Tokens: objects, nothing, the full stop, other words, box numbers, padding.
/// Slices: the operations on the box asked ("operations").
///
/// Throws Error for a size out of range; `where` goes before the key in its message.
Task entity_tracking_task(const EntityTrackingConfig& config, const std::string& where = "");

TaskEntry entity_tracking_entry();

}  // namespace hopmix::tasks
