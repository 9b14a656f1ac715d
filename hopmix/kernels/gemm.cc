#include "hopmix/kernels/gemm.h"

#include "hopmix/kernels/gemm_loops.h"

namespace hopmix::kernels {
namespace {

GemmEngine& engine() {
  static GemmEngine current = highway_gemm();
  return current;
}

template <typename O>
void loops(int64_t m, int64_t n, int64_t k, const O* a, int64_t lda, const O* b, int64_t ldb, O* c,
           int64_t ldc, bool add) {
  gemm_loops<O>()(m, n, k, a, lda, b, ldb, c, ldc, add);
}

}  // namespace

GemmEngine highway_gemm() {
  return {"highway", loops<float>, loops<double>, nullptr, nullptr, gemm_loop_columns()};
}

const GemmEngine& gemm_engine() { return engine(); }

void use_gemm_engine(const GemmEngine& chosen) {
  const GemmEngine own = highway_gemm();
  engine() = chosen;
  if (engine().f32 == nullptr) engine().f32 = own.f32;
  if (engine().f64 == nullptr) engine().f64 = own.f64;
}

}  // namespace hopmix::kernels
