// Prints a score for people.
#pragma once

#include "hopmix/tasks/task.h"
#include "hopmix/train/score.h"

namespace hopmix::cli {

/// Prints accuracy, chance and the accuracy of each slice to stdout.
void print_score(const train::Score& score, const tasks::Task& task);

}  // namespace hopmix::cli
