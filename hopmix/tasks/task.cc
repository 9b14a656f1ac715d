#include "hopmix/tasks/task.h"

#include "hopmix/base/nearest.h"
#include "hopmix/tasks/copy.h"
#include "hopmix/tasks/entity_tracking.h"
#include "hopmix/tasks/function_composition.h"
#include "hopmix/tasks/induction.h"
#include "hopmix/tasks/mad_memory.h"
#include "hopmix/tasks/mad_recall.h"
#include "hopmix/tasks/mqar.h"
#include "hopmix/tasks/permutation.h"
#include "hopmix/tasks/recall.h"
#include "hopmix/tasks/text.h"

namespace hopmix::tasks {
namespace {

// The registry. A new task needs its own .h and .cc, and a line here.
std::vector<TaskEntry> entries() {
  return {
      copy_entry(),
      associative_recall_entry(),
      multi_hop_recall_entry(),
      mqar_entry(),
      in_context_recall_entry(),
      fuzzy_recall_entry(),
      noisy_recall_entry(),
      selective_copying_entry(),
      compression_entry(),
      memorization_entry(),
      permutation_entry(),
      induction_entry(),
      entity_tracking_entry(),
      function_composition_entry(),
      text_entry(),
  };
}

}  // namespace

Task make_task(config::Table& table) {
  const std::string name = table.require("name");
  std::vector<std::string> known;
  for (const TaskEntry& entry : entries()) {
    known.push_back(entry.info.name);
    if (entry.info.name != name) continue;
    Task task = entry.make(table);
    table.finish();
    return task;
  }
  throw table.bad("name", "must be a known task" + suggestion(name, known));
}

std::vector<TaskInfo> tasks() {
  std::vector<TaskInfo> infos;
  for (const TaskEntry& entry : entries()) infos.push_back(entry.info);
  return infos;
}

}  // namespace hopmix::tasks
