// Matrix Market files: an error of one line, or a pattern that is written and read back the same.
#include "hopmix/pattern/matrix_market.h"

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hopmix;
  try {
    const Csr read = read_matrix_market(fuzz::file_of({reinterpret_cast<const char*>(data), size}));
    for (int64_t i = 0; i < read.rows(); ++i) {
      for (int64_t r = read.row_ptr[i]; r < read.row_ptr[i + 1]; ++r) {
        CHECK(read.cols[r] >= 0 && read.cols[r] < i);
        CHECK(r == read.row_ptr[i] || read.cols[r - 1] < read.cols[r]);
      }
    }
    const auto copy = fuzz::file_of("", ".mtx");
    write_matrix_market(copy, read);
    const Csr again = read_matrix_market(copy);
    CHECK(again.row_ptr == read.row_ptr && again.cols == read.cols);
  } catch (const Error& error) {
    fuzz::check_message(error);
  }
  return 0;
}
