#include "hopmix/train/interrupt.h"

#include <csignal>

namespace hopmix::train {
namespace {

// A signal handler can only reach globals.
volatile std::sig_atomic_t flag = 0;

}  // namespace

struct InterruptGuard::Saved {
  struct sigaction interrupt, terminate, hangup;
};

InterruptGuard::InterruptGuard() : saved_(std::make_unique<Saved>()) {
  flag = 0;
  struct sigaction action = {};
  action.sa_handler = [](int) { flag = 1; };
  action.sa_flags = SA_RESETHAND | SA_RESTART;  // a second signal gets the default action
  sigaction(SIGINT, &action, &saved_->interrupt);
  sigaction(SIGTERM, &action, &saved_->terminate);
  action.sa_flags = SA_RESTART;
  sigaction(SIGHUP, &action, &saved_->hangup);
  if (saved_->hangup.sa_handler == SIG_IGN) sigaction(SIGHUP, &saved_->hangup, nullptr);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &saved_->interrupt, nullptr);
  sigaction(SIGTERM, &saved_->terminate, nullptr);
  sigaction(SIGHUP, &saved_->hangup, nullptr);
}

bool InterruptGuard::interrupted() const { return flag != 0; }

}  // namespace hopmix::train
