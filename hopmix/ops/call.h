// One call of an operator, as its kernel sees it: checked arguments, contiguous, by name.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hopmix/kernels/base/sequences.h"
#include "hopmix/ops/checks.h"
#include "hopmix/ops/operator.h"
#include "hopmix/ops/tensors.h"

namespace hopmix::ops {

class Call {
 public:
  using Values = at::ArrayRef<c10::IValue>;

  /// Values in the order of `arguments`, which are those of one form of the operator.
  Call(const Description& op, const std::vector<Argument>& arguments, Values values,
       const std::string& name);

  // ---- For the kernels of ops/operator_kernels.h, in this order: shapes and dtypes; what a
  // backward pass is given; the contents of index tensors, after which all tensors are contiguous;
  // memory.
  void check();
  void check_given(Values gradients, const std::vector<Tensor>& kept);
  void bind();
  std::vector<Tensor> make_results(bool keeps);
  std::vector<Tensor> make_gradients(const c10::List<bool>& needs);
  /// Whether an output has an element.
  bool has_outputs() const;

  // ---- For the functions of a description

  Arguments& arguments() { return args_; }
  const Arguments& arguments() const { return args_; }
  int64_t size(const char* dim) const { return args_.size(dim); }

  // ---- Options and tensors as they were given

  const c10::IValue& value(std::string_view name) const;
  double scale() const { return args_.scale(value("scale").toOptional<double>()); }
  double number(std::string_view name) const { return value(name).toDouble(); }
  int64_t integer(std::string_view name) const { return value(name).toInt(); }
  bool flag(std::string_view name) const { return value(name).toBool(); }
  /// Throws ValueError if the integer is given and less.
  void at_least(std::string_view name, int64_t least) const;

  /// The tensor, undefined if absent; contiguous once bind() is done.
  const Tensor& tensor(std::string_view name) const;
  bool has(std::string_view name) const { return tensor(name).defined(); }

  // ---- For kernels: pointers, null if absent

  template <typename T>
  const T* in(std::string_view name) const {
    const Tensor& t = tensor(name);
    return t.defined() ? read<T>(t) : nullptr;
  }
  /// An output, or what is kept; null if it is not wanted.
  template <typename T>
  T* out(std::string_view name) const {
    const Tensor& t = named(results_, name);
    return t.defined() ? write<T>(t) : nullptr;
  }
  /// In a backward pass: what the gradient of an input is written to, null if it is not wanted.
  template <typename T>
  T* grad(std::string_view name) const {
    const Tensor& t = named(gradients_, name);
    return t.defined() ? write<T>(t) : nullptr;
  }
  bool is_packed() const { return cu_seqlens_.has_value(); }
  const kernels::Sequences& sequences() const { return *sequences_; }
  const kernels::Rows& rows() const { return pattern_->rows(); }
  /// Where coefficients of single reads lie; `coefficients` names one of their tensors, whose last
  /// dimension is nnz.
  kernels::ReadLayout reads(const char* coefficients) const;
  /// `indices`, whose entries are at or before their token, or before it.
  BoundRetrieval retrieval(bool strictly_earlier) const;

  /// Calls f.template operator()<T>() with the storage type of the tensors.
  template <typename F>
  void with_type(const F& f) const {
    with_storage_type(args_.dtype(), f);
  }

 private:
  struct Named {
    std::string_view name;
    Tensor tensor;
  };

  static const Tensor& named(const std::vector<Named>& list, std::string_view name);

  void check_tensor(Argument::Type type, const char* name, const Tensor& t, const Dims& dims);

  const Description& op_;
  const std::vector<Argument>& arguments_;
  Values values_;
  Arguments args_;
  std::vector<Named> tensors_;      // arguments; in a backward pass then gradients and what is kept
  std::vector<std::string> names_;  // of those gradients
  std::vector<Named> results_;      // outputs, and what is kept of them
  std::vector<Named> gradients_;    // of the differentiable inputs
  std::optional<PatternArg> given_pattern_;
  std::optional<Tensor> cu_seqlens_;
  std::optional<kernels::Sequences> sequences_;
  std::optional<BoundPattern> pattern_;
};

}  // namespace hopmix::ops
