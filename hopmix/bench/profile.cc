#include "hopmix/bench/profile.h"

#include <ATen/record_function.h>

#include <ctime>
#include <memory>
#include <vector>

namespace hopmix::bench {
namespace {

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Frame {
  std::string name;
  at::RecordScope scope;
  double start, children;
};

struct Recording {
  std::vector<Frame> stack;
  std::string phase;
  std::map<std::string, Phase> phases;
};

// The autograd node being executed, then the operator. Our own nodes have the names of C++ types;
// the operators they call have clear names, so the node is left out.
std::string full_name(const Recording& recording, const Frame& frame) {
  for (auto at = recording.stack.rbegin(); at != recording.stack.rend(); ++at) {
    if (at->scope != at::RecordScope::BACKWARD_FUNCTION) continue;
    return at->name.find("CppNode<") == std::string::npos ? at->name + ": " + frame.name
                                                          : frame.name;
  }
  return frame.name;
}

// The callbacks are plain functions and find the recording here.
thread_local Recording* current = nullptr;

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  const bool is_phase = function.scope() == at::RecordScope::USER_SCOPE;
  if (is_phase) current->phase = function.name();
  current->stack.push_back({function.name(), function.scope(), cpu_seconds(), 0});
  return nullptr;
}

void end(const at::RecordFunction&, at::ObserverContext*) {
  if (current->stack.empty()) return;  // began before the recording
  const Frame frame = current->stack.back();
  current->stack.pop_back();
  const double total = cpu_seconds() - frame.start;
  if (!current->stack.empty()) current->stack.back().children += total;
  Phase& phase = current->phases[current->phase];
  const bool is_phase = frame.scope == at::RecordScope::USER_SCOPE;
  phase.operators[is_phase ? "" : full_name(*current, frame)] += total - frame.children;
  if (is_phase) {
    phase.seconds += total;
    current->phase.clear();
  }
}

}  // namespace

std::map<std::string, Phase> profile(const std::function<void()>& body) {
  Recording recording;
  struct Listening {
    at::CallbackHandle handle;
    ~Listening() {
      at::removeCallback(handle);
      current = nullptr;
    }
  };
  current = &recording;
  {
    const Listening listening{at::addThreadLocalCallback(
        at::RecordFunctionCallback(begin, end)
            .scopes({at::RecordScope::USER_SCOPE, at::RecordScope::FUNCTION,
                     at::RecordScope::BACKWARD_FUNCTION}))};
    body();
  }
  return recording.phases;
}

}  // namespace hopmix::bench
