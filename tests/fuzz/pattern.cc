// The pattern grammar: any text is an error of one line or a pattern whose rows agree with each other.
#include <algorithm>
#include <vector>

#include "hopmix/pattern/pattern.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hopmix;
  fuzz::Input input(data, size);
  const int64_t n = input.number(0, 300);
  const std::string_view spec = input.rest();
  // Files are for the target matrix_market; a text of over 200 characters takes time and finds nothing new.
  if (spec.size() > 200 || spec.find("dag") != std::string_view::npos) return 0;
  try {
    const Pattern pattern(spec, n);
    CHECK(pattern.size() == n);
    const Csr all = to_csr(pattern);
    std::vector<int32_t> row, before;
    for (int64_t i = 0; i < n; ++i) {
      pattern.row(i, row);
      CHECK(std::vector<int32_t>(all.cols.begin() + all.row_ptr[i], all.cols.begin() + all.row_ptr[i + 1]) == row);
      for (size_t r = 0; r < row.size(); ++r) CHECK(row[r] >= 0 && row[r] < i && (r == 0 || row[r - 1] < row[r]));
      if (pattern.inherits() && i > 0) {
        for (const int32_t j : row) CHECK(j == i - 1 || std::binary_search(before.begin(), before.end(), j));
      }
      before = row;
    }
    const Pattern again(pattern.spec(), n);
    CHECK(to_csr(again).cols == all.cols);
  } catch (const Error& error) {
    fuzz::check_message(error);
  }
  return 0;
}
