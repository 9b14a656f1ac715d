#include "hopmix/cli/propositions.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "hopmix/analysis/propositions.h"
#include "hopmix/base/text_table.h"

namespace hopmix::cli {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

}  // namespace

void reproduce_propositions(bool json) {
  const std::vector<PropositionRow> rows = measure_propositions();
  if (json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const PropositionRow& row : rows) {
      list.push_back({{"proposition", row.proposition},
                      {"pattern", row.pattern},
                      {"n", row.n},
                      {"quantity", row.quantity},
                      {"measured", row.measured},
                      {"relation", row.relation},
                      {"bound", row.bound},
                      {"holds", row.holds}});
    }
    std::printf("%s\n", list.dump(2).c_str());
    return;
  }
  std::vector<std::vector<std::string>> cells;
  size_t held = 0;
  for (const PropositionRow& row : rows) {
    held += row.holds;
    cells.push_back({row.proposition, row.pattern, std::to_string(row.n), row.quantity,
                     number(row.measured), row.relation, number(row.bound),
                     row.holds ? "yes" : "NO"});
  }
  std::printf(
      "%s\n%zu of %zu hold. Numbers as in arXiv 2605.31367; n: tokens.\n",
      text_table({"proposition", "pattern", "n", "quantity", "measured", "", "bound", "holds"},
                 cells, {true, true, false, true, false, true, false, true})
          .c_str(),
      held, rows.size());
}

}  // namespace hopmix::cli
