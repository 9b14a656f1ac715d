// Rows of text in columns.
#pragma once

#include <string>
#include <vector>

namespace hopmix {

/// A head and rows of as many cells. Columns are as wide as their widest cell, two spaces apart;
/// the first is set to the left, the others to the right unless `left` says so for a column.
std::string text_table(const std::vector<std::string>& head,
                       const std::vector<std::vector<std::string>>& rows,
                       const std::vector<bool>& left = {});

/// "%.DIGITSf" of a number.
std::string fixed(double value, int digits);

}  // namespace hopmix
