#include "hopmix/cli/score_table.h"

#include <cstdio>

namespace hopmix::cli {

void print_score(const train::Score& score, const tasks::Task& task) {
  std::printf("%-16s %7.2f%%  of %lld (chance %.1f%%), loss %.4f\n", "accuracy",
              score.all.percent(), static_cast<long long>(score.all.asked), task.chance,
              score.loss());
  if (score.bytes > 0)
    std::printf("%-16s %7.3f   held out\n", "bits per byte", score.bits_per_byte());
  for (const auto& [slice, count] : score.slices) {
    const std::string name = "  " + task.slice_name + " " + std::to_string(slice);
    std::printf("%-16s %7.2f%%  of %lld\n", name.c_str(), count.percent(),
                static_cast<long long>(count.asked));
  }
}

}  // namespace hopmix::cli
