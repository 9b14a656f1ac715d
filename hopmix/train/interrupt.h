// Lets long-running work poll for Ctrl-C between steps.
#pragma once

#include <memory>

namespace hopmix::train {

/// While an instance exists, SIGINT and SIGTERM set a flag instead of ending the process; a second
/// signal ends it at once.
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
