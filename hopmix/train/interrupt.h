// Ctrl-C as a question that long work asks between two steps.
#pragma once

#include <memory>

namespace hopmix::train {

/// While one lives, SIGINT and SIGTERM set a flag instead of ending the process; a second signal
/// ends it at once.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool interrupted() const;

 private:
  struct Saved;
  std::unique_ptr<Saved> saved_;
};

}  // namespace hopmix::train
