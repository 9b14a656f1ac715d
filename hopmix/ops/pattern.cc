// pattern(str spec, int n) -> (Tensor row_ptr, Tensor cols)
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include <memory>

#include "hopmix/ops/checks.h"
#include "hopmix/ops/ops.h"
#include "hopmix/pattern/pattern.h"

namespace hopmix::ops {
namespace {

// A tensor that owns the vector's memory.
template <typename T>
Tensor to_tensor(std::vector<T> values, at::ScalarType dtype) {
  const auto owner = std::make_shared<std::vector<T>>(std::move(values));
  return at::from_blob(
      owner->data(), {static_cast<int64_t>(owner->size())}, [owner](void*) {}, dtype);
}

std::tuple<Tensor, Tensor> pattern_cpu(const Tensor&, std::string_view spec, int64_t n) {
  Csr csr = to_csr(parse_pattern("pattern", spec, n));
  return {to_tensor(std::move(csr.row_ptr), at::kLong), to_tensor(std::move(csr.cols), at::kInt)};
}

// The number of reads is part of the shape, so it is counted even when no data is wanted.
std::tuple<Tensor, Tensor> pattern_meta(const Tensor& like, std::string_view spec, int64_t n) {
  const Pattern pattern = parse_pattern("pattern", spec, n);
  std::vector<int32_t> cols;
  int64_t nnz = 0;
  for (int64_t i = 0; i < n; ++i) {
    pattern.row(i, cols);
    nnz += static_cast<int64_t>(cols.size());
  }
  return {at::empty({n + 1}, like.options().dtype(at::kLong)),
          at::empty({nnz}, like.options().dtype(at::kInt))};
}

// No argument of `pattern` is a tensor, and tracing cannot tell a device without one: an empty
// tensor carries it.
std::tuple<Tensor, Tensor> pattern_composite(std::string_view spec, int64_t n) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("hopmix::_pattern", "")
      .typed<decltype(pattern_cpu)>()
      .call(at::empty({0}, at::kFloat), spec, n);
}

TORCH_LIBRARY_FRAGMENT(hopmix, m) {
  m.def("pattern(str spec, int n) -> (Tensor row_ptr, Tensor cols)", {at::Tag::pt2_compliant_tag});
  m.def("_pattern(Tensor like, str spec, int n) -> (Tensor row_ptr, Tensor cols)",
        {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(hopmix, CompositeImplicitAutograd, m) { m.impl("pattern", &pattern_composite); }
TORCH_LIBRARY_IMPL(hopmix, CPU, m) { m.impl("_pattern", &pattern_cpu); }
TORCH_LIBRARY_IMPL(hopmix, Meta, m) { m.impl("_pattern", &pattern_meta); }

}  // namespace

std::tuple<Tensor, Tensor> pattern(std::string_view spec, int64_t n) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("hopmix::pattern", "")
      .typed<std::tuple<Tensor, Tensor>(std::string_view, int64_t)>()
      .call(spec, n);
}

}  // namespace hopmix::ops
