// The argument checks of all operators. A failed one raises ValueError (c10::ValueError) in one
// line that names the argument, its value and what would be right.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hopmix/kernels/base/sequences.h"
#include "hopmix/kernels/rows/rows.h"
#include "hopmix/ops/ops.h"

namespace hopmix::ops {

/// Checks shapes, dtypes and devices of one call, and so knows its sizes. What only the content of
/// index tensors can tell is left to bind_sequences and BoundPattern, because a meta tensor has
/// none.
class Arguments {
 public:
  /// `op` without the namespace, as the errors name it.
  explicit Arguments(std::string op) : op_(std::move(op)) {}

  /// `dims` names the sizes; one that was seen before must agree. A digit is a size itself; a
  /// first "..." stands for 0 to 3 dimensions, the same for all tensors. All tensors share dtype
  /// and device with the first, whose dtype must be float32, float64 or bfloat16.
  void tensor(const char* name, const Tensor& t, at::ArrayRef<const char*> dims);

  /// A recurrent state: float64 when the tensors are, else float32.
  void state(const char* name, const Tensor& t, at::ArrayRef<const char*> dims);
  at::ScalarType state_dtype() const;

  at::ScalarType dtype() const { return first_.scalar_type(); }

  /// H query heads on G key/value heads: G >= 1 and H a multiple of it. DK >= 1.
  void grouped_heads() const;

  /// int64 [n + 1] and int32 [nnz]; a spec is checked when it is bound.
  void pattern(const PatternArg& pattern);

  /// int32 positions, -1 for none: what was retrieved. May be the first tensor of a call.
  void positions(const char* name, const Tensor& t, at::ArrayRef<const char*> dims);

  /// The same for attention, [B, T, H, W] or one list for all query heads of a key/value head, [B,
  /// T, G, W].
  void retrieved(const Tensor& indices);

  /// int64 [N + 1] with B = 1. Sets N, the number of sequences (B without cu_seqlens).
  void cu_seqlens(const std::optional<Tensor>& cu_seqlens);

  /// A share of what is mixed: 0 <= gamma < 1.
  void gamma(double gamma) const;

  /// What a forward pass kept for this backward: `count` tensors.
  void kept(at::TensorList tensors, size_t count) const;

  void check_scale(std::optional<double> scale) const;
  /// The given scale, which must be finite, or 1/sqrt(DK).
  double scale(std::optional<double> scale) const;

  /// "..." is the product of what it stands for.
  int64_t size(const char* dim) const;
  c10::SymInt sym_size(const char* dim) const;
  std::vector<c10::SymInt> sizes(at::ArrayRef<const char*> dims) const;
  /// Names one more size, for outputs.
  void define(const char* dim, const c10::SymInt& size) { sizes_.push_back({dim, size, ""}); }
  const std::string& op() const { return op_; }

  /// New uninitialized memory of these sizes, with the dtype and device of the tensors, or another
  /// dtype.
  Tensor empty(at::ArrayRef<const char*> dims, std::optional<at::ScalarType> dtype = {}) const;
  /// The same by numbers.
  Tensor empty_of(c10::SymIntArrayRef sizes) const;

 private:
  void shape(const char* name, const Tensor& t, at::ArrayRef<const char*> dims);
  void device(const char* name, const Tensor& t) const;

  std::string op_, first_name_;
  Tensor first_;
  struct Size {
    std::string name;
    c10::SymInt size;
    std::string source;  // which argument it came from
  };
  const Size* find(std::string_view dim) const;

  std::vector<Size> sizes_;
  std::optional<std::vector<c10::SymInt>> leading_;  // what "..." stands for
};

/// The sequences of a call with B, T (and cu_seqlens): bounds rise from 0 to T.
kernels::Sequences bind_sequences(const Arguments& args, const std::optional<Tensor>& cu_seqlens);

/// A pattern on the longest sequence, safe to read: row_ptr and cols are checked entry by entry, so
/// malformed indices cannot reach a kernel.
class BoundPattern {
 public:
  BoundPattern(const Arguments& args, const PatternArg& pattern, int64_t longest);
  const kernels::Rows& rows() const { return *rows_; }

 private:
  Tensor row_ptr_, cols_;  // keep what rows_ views
  std::optional<kernels::Rows> rows_;
};

/// What was retrieved, safe to read: every entry is checked to be -1 or a position from 0 to that
/// of its token, or below it if `strictly_earlier`. Positions count from the first token of their
/// sequence. A view of `sequences`.
class BoundRetrieval {
 public:
  BoundRetrieval(const Arguments& args, const Tensor& indices, const kernels::Sequences& sequences,
                 bool strictly_earlier);

  /// As rows of H heads.
  kernels::RowsOfHeads rows(int64_t heads) const;
  const int32_t* data() const { return indices_.const_data_ptr<int32_t>(); }

 private:
  Tensor indices_;
  const kernels::Sequences& sequences_;
};

/// Parses a spec on n tokens; its errors become ValueError. Remembers the last specs that name no
/// file, because calls repeat them. Thread-safe.
Pattern parse_pattern(const std::string& op, std::string_view spec, int64_t n);

/// Memory for the gradients of `inputs`: of the input's shape where `needs` it, else empty.
std::vector<Tensor> gradients(at::TensorList inputs, at::ArrayRef<bool> needs);

}  // namespace hopmix::ops
