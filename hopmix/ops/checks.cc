#include "hopmix/ops/checks.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "hopmix/base/error.h"

namespace hopmix::ops {
namespace {

std::string joined(at::ArrayRef<const char*> names) {
  std::string out = "[";
  for (const char* name : names) out += (out.size() > 1 ? ", " : "") + std::string(name);
  return out + "]";
}

// A dimension by its size, of one digit.
bool is_number(const char* dim) { return *dim >= '0' && *dim <= '9' && dim[1] == 0; }

void check_index(const std::string& op, const char* name, const Tensor& t, at::ScalarType dtype,
                 const char* meaning) {
  TORCH_CHECK_VALUE(t.defined() && t.dim() == 1 && t.scalar_type() == dtype, op, ": ", name, " is ",
                    t.scalar_type(), " ", t.sym_sizes(), ", but must be ", dtype, " ", meaning);
}

void check_row_ptr(const std::string& op, const Tensor& row_ptr, int64_t nnz, int64_t longest) {
  const int64_t n = row_ptr.size(0) - 1;
  const int64_t* ptr = row_ptr.const_data_ptr<int64_t>();
  TORCH_CHECK_VALUE(n >= longest, op, ": row_ptr has ", n + 1, " entries, so ", n,
                    " rows, but must have one for each of the ", longest,
                    " tokens of the longest sequence, and one entry more");
  TORCH_CHECK_VALUE(ptr[0] == 0, op, ": row_ptr[0] is ", ptr[0], ", but must be 0");
  for (int64_t i = 0; i < n; ++i) {
    TORCH_CHECK_VALUE(ptr[i] <= ptr[i + 1], op, ": row_ptr[", i + 1, "] is ", ptr[i + 1],
                      ", but must be at least row_ptr[", i, "] = ", ptr[i]);
  }
  TORCH_CHECK_VALUE(ptr[n] == nnz, op, ": row_ptr[", n, "] is ", ptr[n],
                    ", but must be the number of cols, ", nnz);
}

// Whether the n entries at `col` rise from at least 0 to less than i; in a form that vectorizes,
// because every call of an operator looks at every entry.
bool is_row(const int32_t* col, int64_t n, int64_t i) {
  if (n == 0) return true;
  int bad = (col[0] < 0) | (col[n - 1] >= i);
#pragma omp simd reduction(| : bad)
  for (int64_t r = 1; r < n; ++r) bad |= col[r - 1] >= col[r];
  return bad == 0;
}

void check_cols(const std::string& op, const Tensor& row_ptr, const Tensor& cols) {
  const int64_t* ptr = row_ptr.const_data_ptr<int64_t>();
  const int32_t* col = cols.const_data_ptr<int32_t>();
  for (int64_t i = 0; i + 1 < row_ptr.size(0); ++i) {
    if (is_row(col + ptr[i], ptr[i + 1] - ptr[i], i)) continue;
    int64_t previous = -1;
    for (int64_t r = ptr[i]; r < ptr[i + 1]; ++r) {
      TORCH_CHECK_VALUE(previous < col[r] && col[r] < i, op, ": cols[", r, "] is ", col[r],
                        ", but row ", i, " must list tokens from 0 to ", i - 1,
                        " in ascending order");
      previous = col[r];
    }
  }
}

// Whether n entries are all -1 or at most `last`; vectorizes as is_row does.
bool are_positions(const int32_t* entry, int64_t n, int32_t last) {
  int bad = 0;
#pragma omp simd reduction(| : bad)
  for (int64_t r = 0; r < n; ++r) bad |= (entry[r] < -1) | (entry[r] > last);
  return bad == 0;
}

}  // namespace

void Arguments::device(const char* name, const Tensor& t) const {
  TORCH_CHECK_VALUE(!first_.defined() || t.device() == first_.device(), op_, ": ", name, " is on ",
                    t.device(), ", but must be on ", first_.device(), " like ", first_name_);
}

void Arguments::shape(const char* name, const Tensor& t, at::ArrayRef<const char*> dims) {
  const bool leads = !dims.empty() && std::string_view(dims[0]) == "...";
  const int64_t named = static_cast<int64_t>(dims.size()) - (leads ? 1 : 0);
  const int64_t leading = t.dim() - named;
  TORCH_CHECK_VALUE(leads ? leading >= 0 && leading <= 3 : leading == 0, op_, ": ", name, " is ",
                    t.sym_sizes(), ", but must be ", joined(dims));
  if (leads) {
    const c10::SymIntArrayRef given = t.sym_sizes().slice(0, leading);
    if (!leading_) leading_ = given.vec();
    TORCH_CHECK_VALUE(given == c10::SymIntArrayRef(*leading_), op_, ": ", name, " is ",
                      t.sym_sizes(), ", but must be ", joined(dims), " with ", first_.sym_sizes(),
                      " as in ", first_name_);
  }
  int64_t axis = leading;
  for (const char* dim : leads ? dims.slice(1) : dims) {
    const c10::SymInt size = t.sym_size(axis++);
    if (is_number(dim)) {
      TORCH_CHECK_VALUE(size == *dim - '0', op_, ": ", name, " is ", t.sym_sizes(),
                        ", but must be ", joined(dims));
      continue;
    }
    const Size* const seen = find(dim);
    if (seen == nullptr) {
      sizes_.push_back({dim, size, name});
      continue;
    }
    TORCH_CHECK_VALUE(size == seen->size, op_, ": ", name, " is ", t.sym_sizes(), ", but must be ",
                      joined(dims), " with ", dim, " = ", seen->size, " as in ", seen->source);
  }
}

const Arguments::Size* Arguments::find(std::string_view dim) const {
  for (const Size& size : sizes_) {
    if (size.name == dim) return &size;
  }
  return nullptr;
}

c10::SymInt Arguments::sym_size(const char* dim) const {
  if (std::string_view(dim) != "...") return find(dim)->size;
  c10::SymInt product = 1;
  for (const c10::SymInt& size : *leading_) product = product * size;
  return product;
}

int64_t Arguments::size(const char* dim) const { return sym_size(dim).expect_int(); }

void Arguments::tensor(const char* name, const Tensor& t, at::ArrayRef<const char*> dims) {
  TORCH_CHECK_VALUE(t.defined(), op_, ": ", name, " is undefined, but must be a tensor");
  const at::ScalarType dtype = t.scalar_type();
  if (!first_.defined()) {
    TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16, op_,
                      ": ", name, " is ", dtype, ", but must be Float, Double or BFloat16");
    first_ = t;
    first_name_ = name;
  }
  TORCH_CHECK_VALUE(dtype == first_.scalar_type(), op_, ": ", name, " is ", dtype, ", but must be ",
                    first_.scalar_type(), " like ", first_name_);
  device(name, t);
  shape(name, t, dims);
}

at::ScalarType Arguments::state_dtype() const {
  return first_.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void Arguments::state(const char* name, const Tensor& t, at::ArrayRef<const char*> dims) {
  TORCH_CHECK_VALUE(t.scalar_type() == state_dtype(), op_, ": ", name, " is ", t.scalar_type(),
                    ", but must be ", state_dtype(), " for ", first_.scalar_type(), " inputs");
  device(name, t);
  shape(name, t, dims);
}

void Arguments::grouped_heads() const {
  const c10::SymInt& heads = find("H")->size;
  const c10::SymInt& kv_heads = find("G")->size;
  TORCH_CHECK_VALUE(kv_heads > 0 && heads % kv_heads == 0, op_, ": q has ", heads,
                    " heads, but must have a multiple of the ", kv_heads,
                    " heads of k and v (at least 1)");
  TORCH_CHECK_VALUE(find("DK")->size > 0, op_, ": q is ", first_.sym_sizes(),
                    ", but must have a width of at least 1");
}

void Arguments::pattern(const PatternArg& pattern) {
  if (!pattern.row_ptr.defined() && !pattern.cols.defined()) return;
  check_index(op_, "row_ptr", pattern.row_ptr, at::kLong, "[n + 1]");
  check_index(op_, "cols", pattern.cols, at::kInt, "[nnz]");
  device("row_ptr", pattern.row_ptr);
  device("cols", pattern.cols);
  TORCH_CHECK_VALUE(pattern.row_ptr.sym_size(0) > 0, op_,
                    ": row_ptr is [0], but must have at least one entry, 0");
}

void Arguments::positions(const char* name, const Tensor& t, at::ArrayRef<const char*> dims) {
  TORCH_CHECK_VALUE(t.defined() && t.scalar_type() == at::kInt, op_, ": ", name, " is ",
                    t.defined() ? c10::toString(t.scalar_type()) : "undefined",
                    ", but must be Int ", joined(dims));
  if (!first_.defined()) {
    first_ = t;
    first_name_ = name;
  }
  device(name, t);
  shape(name, t, dims);
}

void Arguments::retrieved(const Tensor& indices) {
  positions("indices", indices, {"B", "T", "lists", "W"});
  const c10::SymInt &lists = find("lists")->size, &heads = find("H")->size, &kv = find("G")->size;
  TORCH_CHECK_VALUE(lists == heads || lists == kv, op_, ": indices is ", indices.sym_sizes(),
                    ", but must have a list for each of the ", heads, " heads of q or of the ", kv,
                    " of k");
}

void Arguments::cu_seqlens(const std::optional<Tensor>& cu_seqlens) {
  if (!cu_seqlens) {
    sizes_.push_back({"N", find("B")->size, find("B")->source});
    return;
  }
  check_index(op_, "cu_seqlens", *cu_seqlens, at::kLong, "[N + 1]");
  device("cu_seqlens", *cu_seqlens);
  TORCH_CHECK_VALUE(cu_seqlens->sym_size(0) > 0, op_,
                    ": cu_seqlens is [0], but must have at least one entry, 0");
  TORCH_CHECK_VALUE(find("B")->size == 1, op_, ": ", first_name_, " has batch ", find("B")->size,
                    ", but must have batch 1 when cu_seqlens is given");
  sizes_.push_back({"N", cu_seqlens->sym_size(0) - 1, "cu_seqlens"});
}

void Arguments::check_scale(std::optional<double> scale) const {
  TORCH_CHECK_VALUE(!scale || std::isfinite(*scale), op_, ": scale is ", *scale,
                    ", but must be finite");
}

double Arguments::scale(std::optional<double> scale) const {
  check_scale(scale);
  return scale ? *scale : 1 / std::sqrt(static_cast<double>(size("DK")));
}

void Arguments::gamma(double gamma) const {
  TORCH_CHECK_VALUE(gamma >= 0 && gamma < 1, op_, ": gamma is ", gamma,
                    ", but must be at least 0 and below 1");
  TORCH_CHECK_VALUE(state_dtype() == at::kDouble || static_cast<float>(gamma) < 1, op_,
                    ": gamma rounds to 1 in float32, but must be below 1");
}

void Arguments::kept(at::TensorList tensors, size_t count) const {
  TORCH_CHECK_VALUE(tensors.size() == count, op_, ": kept has ", tensors.size(),
                    " tensors, but must have the ", count, " that the forward pass kept");
}

std::vector<c10::SymInt> Arguments::sizes(at::ArrayRef<const char*> dims) const {
  std::vector<c10::SymInt> sizes;
  for (const char* dim : dims) {
    if (is_number(dim)) {
      sizes.emplace_back(*dim - '0');
    } else if (std::string_view(dim) == "...") {
      sizes.insert(sizes.end(), leading_->begin(), leading_->end());
    } else {
      sizes.push_back(find(dim)->size);
    }
  }
  return sizes;
}

Tensor Arguments::empty(at::ArrayRef<const char*> dims, std::optional<at::ScalarType> dtype) const {
  return at::empty_symint(sizes(dims),
                          first_.options().dtype(dtype.value_or(first_.scalar_type())));
}

Tensor Arguments::empty_of(c10::SymIntArrayRef sizes) const {
  return at::empty_symint(sizes, first_.options());
}

kernels::Sequences bind_sequences(const Arguments& args, const std::optional<Tensor>& cu_seqlens) {
  const int64_t time = args.size("T");
  if (!cu_seqlens) return kernels::Sequences::batched(args.size("B"), time);
  const Tensor bounds = cu_seqlens->contiguous();
  const int64_t* at = bounds.const_data_ptr<int64_t>();
  const int64_t last = bounds.size(0) - 1;
  TORCH_CHECK_VALUE(at[0] == 0, args.op(), ": cu_seqlens[0] is ", at[0], ", but must be 0");
  for (int64_t n = 0; n < last; ++n) {
    TORCH_CHECK_VALUE(at[n] <= at[n + 1], args.op(), ": cu_seqlens[", n + 1, "] is ", at[n + 1],
                      ", but must be at least cu_seqlens[", n, "] = ", at[n]);
  }
  TORCH_CHECK_VALUE(at[last] == time, args.op(), ": cu_seqlens[", last, "] is ", at[last],
                    ", but must be T = ", time);
  return kernels::Sequences::packed({at, static_cast<size_t>(last + 1)});
}

BoundPattern::BoundPattern(const Arguments& args, const PatternArg& pattern, int64_t longest) {
  TORCH_CHECK_VALUE(longest <= std::numeric_limits<int32_t>::max(), args.op(), ": T is ", longest,
                    ", but a pattern must have less than 2^31 tokens");
  if (!pattern.row_ptr.defined()) {
    rows_.emplace(parse_pattern(args.op(), pattern.spec, longest));
    return;
  }
  row_ptr_ = pattern.row_ptr.contiguous();
  cols_ = pattern.cols.contiguous();
  check_row_ptr(args.op(), row_ptr_, cols_.size(0), longest);
  check_cols(args.op(), row_ptr_, cols_);
  rows_.emplace(row_ptr_.const_data_ptr<int64_t>(), cols_.const_data_ptr<int32_t>());
}

BoundRetrieval::BoundRetrieval(const Arguments& args, const Tensor& indices,
                               const kernels::Sequences& sequences, bool strictly_earlier)
    : indices_(indices.contiguous()), sequences_(sequences) {
  TORCH_CHECK_VALUE(sequences.longest() <= std::numeric_limits<int32_t>::max(), args.op(),
                    ": T is ", sequences.longest(),
                    ", but must be below 2^31 for positions to be int32");
  const int64_t lists = indices_.size(2), width = indices_.size(3);
  for (const kernels::Sequence& s : sequences.list) {
    for (int64_t i = 0; i < s.length; ++i) {
      const int64_t token = sequences.first_token(s) + i;
      const int32_t* entry = data() + token * lists * width;
      const int64_t last = strictly_earlier ? i - 1 : i;
      if (are_positions(entry, lists * width, static_cast<int32_t>(last))) continue;
      for (int64_t r = 0; r < lists * width; ++r) {
        TORCH_CHECK_VALUE(are_positions(entry + r, 1, static_cast<int32_t>(last)), args.op(),
                          ": indices[", s.batch, ", ", s.start + i, ", ", r / width, ", ",
                          r % width, "] is ", entry[r], ", but token ", i,
                          " of its sequence must list positions from 0 to ", last,
                          ", or -1 for none");
      }
    }
  }
}

kernels::RowsOfHeads BoundRetrieval::rows(int64_t heads) const {
  return {data(), heads, indices_.size(2), indices_.size(3), sequences_};
}

std::vector<Tensor> gradients(at::TensorList inputs, at::ArrayRef<bool> needs) {
  std::vector<Tensor> out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    out.push_back(needs[i] ? at::empty_symint(inputs[i].sym_sizes(), inputs[i].options())
                           : at::empty({0}, inputs[i].options()));
  }
  return out;
}

}  // namespace hopmix::ops
