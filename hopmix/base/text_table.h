// Formats text in columns.
#pragma once

#include <string>
#include <vector>

namespace hopmix {

/// Formats a header and rows with the same number of cells. Columns are as wide as their widest
/// cell and two spaces apart; the first is left-aligned, the others right-aligned unless `left`
/// says otherwise.
std::string text_table(const std::vector<std::string>& head,
                       const std::vector<std::vector<std::string>>& rows,
                       const std::vector<bool>& left = {});

/// Formats a number with "%.DIGITSf".
std::string fixed(double value, int digits);

}  // namespace hopmix
