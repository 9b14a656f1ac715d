// Plain loads with the widest vectors of the machine: the fastest that any kernel can read. Timed
// over buffers of each cache's size, they give the ceiling that `hopmix bench` compares kernels
// with.
#pragma once

#include <cstdint>
#include <string>

namespace hopmix::kernels {

/// The sum of data[0..count), in vectors and several accumulators; the order of summation is
/// unspecified.
float sum_in_order(const float* data, int64_t count);

/// The sum of the rows order[0..count) of data [rows, width]: the best case of a sparse kernel.
/// `width` is a multiple of 128.
float sum_of_rows(const float* data, int64_t width, const int32_t* order, int64_t count);

/// data[i] *= factor: the least work of an in-place update of data[0..count).
void scale_in_order(float* data, int64_t count, float factor);

/// The instruction set that these use, by Highway's name ("AVX3_ZEN4", "AVX2", "NEON", ...).
std::string simd_target();

}  // namespace hopmix::kernels
