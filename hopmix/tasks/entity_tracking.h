// Entity tracking: operations move objects between boxes; what does each box contain at the end?
#pragma once

#include <cstdint>
#include <string>

#include "hopmix/tasks/task.h"

namespace hopmix::tasks {

struct EntityTrackingConfig {
  int64_t boxes = 7;          // at least 2
  int64_t objects = 30;       // at least boxes * max_items
  int64_t max_items = 3;      // in a box, at least 1
  int64_t operations = 12;    // at least 0
  int64_t queries = 7;        // boxes asked about, all different; 1 to boxes
  bool move_contents = true;  // a move of a whole box says `contents` instead of naming objects
};

/// The boxes of "Entity Tracking in Language Models" (arXiv 2305.02363), on which "Chain and Causal
/// Attention for Efficient Entity Tracking" (arXiv 2410.05565) is measured; a token is a word. The
/// text gives the initial state, `Box 0 contains apple key .`, then operations, then questions in
/// the same form:
///
///     Move apple from Box 0 to Box 3 .       Move contents of Box 0 to Box 3 .
///     Put book into Box 3 .                  Remove apple key from Box 0 .
///
/// An empty box `contains nothing .`; objects are listed in the order of their numbers. A box
/// starts with 0..max_items objects, uniformly. An operation is one of the three kinds and a box,
/// redrawn until it is possible: Move and Remove take a nonempty subset of the box, each equally
/// likely; Put adds a number of objects drawn from 1 to the room left. With `move_contents`,
/// answering may require following a box back through earlier boxes.
///
/// A question asks, at `contains` and at each object, for the next object, and after the last one
/// for the full stop; for an empty box it asks for `nothing` at `contains`. Padding on the left
/// fills the row up to the longest text. Tokens: objects, nothing, the full stop, other words, box
/// numbers, padding. Slices: the operations on the box asked about ("operations").
///
/// Throws Error for a size out of range; `where` precedes the key in the message.
Task entity_tracking_task(const EntityTrackingConfig& config, const std::string& where = "");

TaskEntry entity_tracking_entry();

}  // namespace hopmix::tasks
