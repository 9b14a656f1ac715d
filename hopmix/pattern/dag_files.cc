#include "hopmix/pattern/dag_files.h"

#include "hopmix/pattern/node.h"

namespace hopmix {

std::vector<std::string> dag_files(std::string_view spec) {
  constexpr int64_t kTokens = 1;
  std::vector<std::string> files;
  for (const Term& term : parse_terms(strip_spec(spec), kTokens)) {
    if (const auto* dag = std::get_if<terms::Dag>(&term)) files.push_back(dag->file);
  }
  return files;
}

}  // namespace hopmix
