// What a task and its model must agree on about a token's extra numbers.
#pragma once

#include <cstdint>
#include <string>

namespace hopmix::config {

/// An extra number that a token carries, with a vocabulary of its own. A model embeds it by a table
/// of `size` vectors or, with `of_tokens`, by a linear map of the embedding of the same number as a
/// token.
struct TaskField {
  std::string name;
  int64_t size = 0;        // 0..size-1
  bool of_tokens = false;  // shares the task's vocabulary
};

}  // namespace hopmix::config
