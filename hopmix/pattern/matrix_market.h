// Patterns as Matrix Market coordinate files: row reads column, 1-based, strictly lower triangular.
// Format: https://math.nist.gov/MatrixMarket/formats.html
#pragma once

#include <filesystem>

#include "hopmix/pattern/pattern.h"

namespace hopmix {

/// Reads a square `coordinate` matrix of field pattern, integer or real (values are not used),
/// symmetry general. Throws Error naming the file and the line: a bad header, an entry on or above
/// the diagonal or out of range, an entry given twice, more or fewer entries than announced; and
/// for a file that cannot be read.
Csr read_matrix_market(const std::filesystem::path& path);

/// Writes `coordinate pattern general`, rows in order, whole or not at all. Throws Error naming the
/// path.
void write_matrix_market(const std::filesystem::path& path, const Csr& pattern);

}  // namespace hopmix
