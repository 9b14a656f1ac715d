// safetensors files: an error of one line, or tensors that are written and read back the same.
#include "hopmix/train/safetensors.h"

#include <cstring>

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hopmix;
  try {
    const auto read = train::read_safetensors(fuzz::file_of({reinterpret_cast<const char*>(data), size}));
    const auto copy = fuzz::file_of("", ".safetensors");
    train::write_safetensors(copy, read.tensors, read.metadata);
    const auto again = train::read_safetensors(copy);
    CHECK(again.metadata == read.metadata && again.tensors.size() == read.tensors.size());
    for (const auto& [name, tensor] : read.tensors) {
      const at::Tensor& other = again.tensors.at(name);
      CHECK(other.sizes() == tensor.sizes() && other.scalar_type() == tensor.scalar_type());
      CHECK(tensor.numel() == 0 || std::memcmp(other.data_ptr(), tensor.data_ptr(), tensor.nbytes()) == 0);
    }
  } catch (const Error& error) {
    fuzz::check_message(error);
  }
  return 0;
}
