#include "hopmix/ops/engines.h"

#include <ATen/Context.h>
#include <ATen/native/CPUBlas.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <mutex>

// MKL as LibTorch holds it; null in builds with another BLAS or none.
extern "C" {
__attribute__((weak)) void sgemm_(const char*, const char*, const int*, const int*, const int*,
                                  const float*, const float*, const int*, const float*, const int*,
                                  const float*, float*, const int*);
__attribute__((weak)) void dgemm_(const char*, const char*, const int*, const int*, const int*,
                                  const double*, const double*, const int*, const double*,
                                  const int*, const double*, double*, const int*);
__attribute__((weak)) int MKL_Set_Num_Threads_Local(int);
}

namespace hopmix::ops {
namespace {

using kernels::Bfloat16;
using kernels::GemmEngine;

const at::BFloat16* as_torch(const Bfloat16* x) { return reinterpret_cast<const at::BFloat16*>(x); }
const float* as_torch(const float* x) { return x; }

template <typename O>
void one_dnn(int64_t m, int64_t n, int64_t k, const O* a, int64_t lda, const O* b, int64_t ldb,
             float* c, int64_t ldc, bool add) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, as_torch(a), as_torch(b), c,
                              /*is_vnni=*/std::is_same_v<O, Bfloat16>);
}

void one_dnn_float(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
                   int64_t ldb, float* c, int64_t ldc, bool add) {
  // brgemm() refuses where the user has switched oneDNN off.
  if (!at::globalContext().userEnabledMkldnn()) {
    return kernels::highway_gemm().f32(m, n, k, a, lda, b, ldb, c, ldc, add);
  }
  one_dnn(m, n, k, a, lda, b, ldb, c, ldc, add);
}

void release_one_dnn() { at::native::cpublas::brgemm_release(); }

template <typename O>
bool one_dnn_runs() {
  O a[4]{}, b[4]{};
  float c[4];
  try {
    one_dnn<O>(2, 2, 2, a, 2, b, 2, c, 2, false);
    release_one_dnn();
  } catch (const c10::Error&) {
    return false;
  }
  return true;
}

template <typename A>
void mkl(int64_t m, int64_t n, int64_t k, const A* a, int64_t lda, const A* b, int64_t ldb, A* c,
         int64_t ldc, bool add) {
  // Column-major: C^T = B^T A^T. One thread, or the bits would depend on how many there are.
  const int columns = static_cast<int>(n), rows = static_cast<int>(m), depth = static_cast<int>(k);
  const int la = static_cast<int>(lda), lb = static_cast<int>(ldb), lc = static_cast<int>(ldc);
  const A one = 1, beta = add ? 1 : 0;
  const int before = MKL_Set_Num_Threads_Local(1);
  if constexpr (std::is_same_v<A, float>) {
    sgemm_("N", "N", &columns, &rows, &depth, &one, b, &lb, a, &la, &beta, c, &lc);
  } else {
    dgemm_("N", "N", &columns, &rows, &depth, &one, b, &lb, a, &la, &beta, c, &lc);
  }
  MKL_Set_Num_Threads_Local(before);
}

bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
#else
  return false;
#endif
}

}  // namespace

std::vector<GemmEngine> gemm_engines() {
  static const std::vector<GemmEngine> engines = [] {
    const bool bf16 = one_dnn_runs<Bfloat16>();
    GemmEngine highway = kernels::highway_gemm();
    if (bf16) {
      highway.bf16 = one_dnn<Bfloat16>;
      highway.release = release_one_dnn;
    }
    std::vector<GemmEngine> all = {highway};
    if (one_dnn_runs<float>()) {
      all.push_back({"onednn", one_dnn_float, highway.f64, highway.bf16, release_one_dnn, 64});
    }
    if (sgemm_ != nullptr && dgemm_ != nullptr && MKL_Set_Num_Threads_Local != nullptr) {
      all.push_back({"mkl", mkl<float>, mkl<double>, highway.bf16, highway.release, 64});
    }
    return all;
  }();
  return engines;
}

void choose_gemm_engine(const std::string& name) {
  const std::string wanted = name.empty() ? (has_avx512() ? "onednn" : "highway") : name;
  const std::vector<GemmEngine> all = gemm_engines();
  std::string known;
  for (const GemmEngine& engine : all) {
    if (engine.name == wanted) return kernels::use_gemm_engine(engine);
    known += (known.empty() ? "" : ", ") + std::string(engine.name);
  }
  if (name.empty()) return kernels::use_gemm_engine(all[0]);
  TORCH_CHECK_VALUE(false, "HOPMIX_GEMM = '", name, "': must be one of ", known);
}

void ensure_gemm_engine() {
  static std::once_flag once;
  std::call_once(once, [] {
    const char* name = std::getenv("HOPMIX_GEMM");
    choose_gemm_engine(name == nullptr ? "" : name);
  });
}

std::string chosen_gemm_engine() {
  ensure_gemm_engine();
  return kernels::gemm_engine().name;
}

}  // namespace hopmix::ops
