// Lets long-running work poll for Ctrl-C between steps.
#pragma once

#include <memory>

namespace hopmix::train {

/// While an instance exists, SIGINT, SIGTERM and SIGHUP (a closed terminal) set a flag instead of
/// ending the process. A second SIGINT or SIGTERM ends it at once; a second SIGHUP does not, since
/// a closed terminal may send two. SIGHUP stays ignored if it was (nohup).
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
