// Engines for the products of kernels/gemm.h out of LibTorch: oneDNN's batch-reduce kernels and
// MKL.
//
// The choice is a table, not a measurement, so that a processor gives the same bits in every run.
// GFlop/s of one thread in float32 (hopmix bench gemm measures any machine):
//
//   64 x 64 x 64           highway   onednn   mkl
//   AMD EPYC, AVX2            89        89     71
//   AMD EPYC, AVX-512          -       258     95
//
// With AVX-512 oneDNN is taken, which alone has products of bfloat16; without it the loops, which
// start quicker (16 x 16 x 64: 82 against 74). The environment variable HOPMIX_GEMM names another.
#pragma once

#include <string>
#include <vector>

#include "hopmix/kernels/gemm.h"

namespace hopmix::ops {

/// The engines that run on this processor, "highway" among them.
std::vector<kernels::GemmEngine> gemm_engines();

/// Takes the engine of this name, or for "" that of the table. Throws ValueError for a name that is
/// not among gemm_engines().
void choose_gemm_engine(const std::string& name);

/// Chooses by HOPMIX_GEMM, or by the table, once; before an operator's first product.
void ensure_gemm_engine();

/// The name of the engine in use, which this chooses if nothing has.
std::string chosen_gemm_engine();

}  // namespace hopmix::ops
