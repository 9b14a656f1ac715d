#include "hopmix/pattern/pattern.h"

#include <algorithm>

#include "hopmix/base/error.h"
#include "hopmix/pattern/node.h"

namespace hopmix {
namespace {

using namespace terms;

constexpr int64_t kMaxTokens = (int64_t{1} << 31) - 1;

bool inherits(const Dense&) { return true; }
bool inherits(const Window&) { return true; }
bool inherits(const Cached&) { return true; }
bool inherits(const Global&) { return true; }
bool inherits(const Blocks&) { return true; }
bool inherits(const Fenwick&) { return true; }
bool inherits(const Offsets&) { return false; }  // not even 1, 2, ...: a larger n may add others
bool inherits(const Strided&) { return false; }
bool inherits(const Random&) { return false; }
bool inherits(const Dag&) { return false; }

}  // namespace

Pattern::Pattern(std::string_view spec, int64_t n) : spec_(strip_spec(spec)), n_(n) {
  if (n < 0 || n > kMaxTokens) {
    throw Error("n " + std::to_string(n) + " must be from 0 to " + std::to_string(kMaxTokens));
  }
  root_ = std::make_shared<const Node>(parse_terms(spec_, n));
}

int64_t Pattern::size() const { return n_; }

const std::string& Pattern::spec() const { return spec_; }

bool Pattern::inherits() const {
  return std::all_of(root_->terms.begin(), root_->terms.end(), [](const Term& term) {
    return std::visit([](const auto& p) { return hopmix::inherits(p); }, term);
  });
}

bool Pattern::is_dense() const {
  return root_->terms.size() == 1 && std::holds_alternative<Dense>(root_->terms.front());
}

int64_t Pattern::most_tokens() const {
  int64_t most = kMaxTokens;
  for (const Term& term : root_->terms) {
    if (const auto* dag = std::get_if<Dag>(&term)) most = std::min(most, dag->rows.rows());
  }
  return most;
}

const std::vector<int64_t>& Pattern::offsets() const {
  static const std::vector<int64_t> none;
  if (root_->terms.size() != 1) return none;
  const auto* f = std::get_if<Offsets>(&root_->terms.front());
  return f ? f->values : none;
}

}  // namespace hopmix
