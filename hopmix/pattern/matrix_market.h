// Patterns as Matrix Market coordinate files: row reads column, 1-based, strictly lower triangular.
// Format: https://math.nist.gov/MatrixMarket/formats.html
#pragma once

#include <filesystem>

#include "hopmix/pattern/pattern.h"

namespace hopmix {

/// Reads a square `coordinate` matrix of field pattern, integer or real (the values are ignored)
/// and symmetry general. Throws Error naming the file and the line for a bad header, an entry that
/// is on or above the diagonal, out of range or duplicated, or a wrong number of entries, and for a
/// file that cannot be read.
Csr read_matrix_market(const std::filesystem::path& path);

/// Writes `coordinate pattern general`, rows in order, atomically. Throws Error naming the path.
void write_matrix_market(const std::filesystem::path& path, const Csr& pattern);

}  // namespace hopmix
