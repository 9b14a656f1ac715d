// The safetensors file format (https://huggingface.co/docs/safetensors, "Format"): named tensors
// and a map of strings, readable from Python and elsewhere without running code.
//
// A file is the length of the header (8 bytes, little-endian), the header (JSON: name -> {dtype,
// shape, data_offsets}, and under "__metadata__" the map of strings; padded with spaces to a
// multiple of 8) and the data, contiguous and little-endian, without gaps.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

namespace hopmix::train {

/// Tensors own their memory and are contiguous, on the CPU.
struct SafetensorsFile {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Writes `path` atomically (hopmix/base/files.h). Tensors may have any strides and device; their
/// dtypes are float64, float32, float16, bfloat16, int64, int32, int16, int8, uint8 and bool.
/// Writes the same bytes as the Python package. Throws Error naming the tensor if it has another
/// dtype, is undefined, sparse or meta, or if its name is "__metadata__" or not UTF-8; and naming
/// the path and the system's reason if the file cannot be written.
void write_safetensors(const std::filesystem::path& path,
                       const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// Reads the whole file. Throws Error naming the file and what is wrong with it. Allocates nothing
/// before the sizes in the header are known to fit the file.
SafetensorsFile read_safetensors(const std::filesystem::path& path);

}  // namespace hopmix::train
