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

void check_size(int64_t n) {
  if (n >= 0 && n <= kMaxTokens) return;
  throw Error("n " + std::to_string(n) + " must be from 0 to " + std::to_string(kMaxTokens));
}

}  // namespace

Pattern::Pattern(std::string_view spec, int64_t n) : spec_(strip_spec(spec)), n_(n) {
  check_size(n);
  root_ = std::make_shared<const Node>(parse_terms(spec_, n));
}

// Row i does not depend on n, so that a description for more tokens serves fewer.
Pattern Pattern::on(int64_t n) const {
  if (n > n_) return Pattern(spec_, n);
  check_size(n);
  Pattern part = *this;
  part.n_ = n;
  return part;
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

bool Pattern::reads_file() const {
  return std::any_of(root_->terms.begin(), root_->terms.end(),
                     [](const Term& term) { return std::holds_alternative<Dag>(term); });
}

int64_t Pattern::most_tokens() const {
  int64_t most = kMaxTokens;
  for (const Term& term : root_->terms) {
    if (const auto* dag = std::get_if<Dag>(&term)) most = std::min(most, dag->rows.rows());
  }
  return most;
}

std::vector<int64_t> Pattern::offsets() const {
  if (root_->terms.size() != 1) return {};
  const auto* f = std::get_if<Offsets>(&root_->terms.front());
  if (f == nullptr) return {};
  return {f->values.begin(), std::lower_bound(f->values.begin(), f->values.end(), n_)};
}

}  // namespace hopmix
