#include "hopmix/ops/call.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "hopmix/ops/engines.h"

namespace hopmix::ops {
namespace {

using Type = Argument::Type;

bool is_tensor(Type type) {
  return type == Type::kTensor || type == Type::kState || type == Type::kPositions ||
         type == Type::kRetrieved || type == Type::kUnchecked;
}

bool counts_sequences(const Dims& dims) {
  return std::any_of(dims.begin(), dims.end(),
                     [](const char* dim) { return std::string_view(dim) == "N"; });
}

}  // namespace

Call::Call(const Description& op, const std::vector<Argument>& arguments, Values values,
           const std::string& name)
    : op_(op), arguments_(arguments), values_(values), args_(name) {
  Tensor row_ptr;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Argument& argument = arguments[i];
    const c10::IValue& value = values[i];
    const Tensor given = value.isTensor() ? value.toTensor() : Tensor();
    if (is_tensor(argument.type)) {
      tensors_.push_back({argument.name, given});
    } else if (argument.type == Type::kSequences) {
      if (given.defined()) cu_seqlens_ = given;
    } else if (argument.type == Type::kPattern && value.isString()) {
      given_pattern_.emplace(value.toStringView());
    } else if (argument.type == Type::kPattern && !row_ptr.defined()) {
      row_ptr = given;
    } else if (argument.type == Type::kPattern) {
      given_pattern_.emplace(row_ptr, given);
    }
  }
}

void Call::check_tensor(Type type, const char* name, const Tensor& t, const Dims& dims) {
  if (type == Type::kTensor) args_.tensor(name, t, dims);
  if (type == Type::kState) args_.state(name, t, dims);
  if (type == Type::kPositions) args_.positions(name, t, dims);
  if (type == Type::kRetrieved) args_.retrieved(t);
}

void Call::check() {
  bool packs = false;
  for (const Argument& argument : arguments_) packs |= argument.type == Type::kSequences;
  for (const bool after_sequences : {false, true}) {
    if (after_sequences && !packs) break;
    if (after_sequences) args_.cu_seqlens(cu_seqlens_);
    size_t next = 0;
    for (const Argument& argument : arguments_) {
      if (!is_tensor(argument.type)) continue;
      const Tensor& t = tensors_[next++].tensor;
      const bool is_optional = argument.schema.compare(0, 7, "Tensor?") == 0;
      if (is_optional && !t.defined()) continue;
      if ((packs && counts_sequences(argument.dims)) != after_sequences) continue;
      check_tensor(argument.type, argument.name.c_str(), t, argument.dims);
      if (argument.name == "v") args_.grouped_heads();
    }
  }
  if (given_pattern_) args_.pattern(*given_pattern_);
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (arguments_[i].name == "scale") args_.check_scale(values_[i].toOptional<double>());
  }
  if (op_.check != nullptr) op_.check(*this);
}

void Call::check_given(Values gradients, const std::vector<Tensor>& kept) {
  names_.reserve(gradients.size());
  size_t next = 0;
  for (const Argument& output : op_.outputs) {
    if (!output.differentiable) continue;
    const c10::IValue& value = gradients[next++];
    const Tensor t = value.isTensor() ? value.toTensor() : Tensor();
    const std::string& name = names_.emplace_back("grad_" + output.name);
    if (t.defined()) check_tensor(output.type, name.c_str(), t, output.dims);
    tensors_.push_back({name, t});
  }
  args_.kept(kept, op_.kept.size());
  for (size_t i = 0; i < kept.size(); ++i) {
    const Kept& k = op_.kept[i];
    tensors_.push_back({k.name, kept[i]});
    if (k.type == Kept::Type::kTensor) args_.tensor(k.name, kept[i], k.dims);
    if (k.type == Kept::Type::kState || k.type == Kept::Type::kUnrounded) {
      args_.state(k.name, kept[i], k.dims);
    }
    if (k.type != Kept::Type::kOutput) continue;
    for (const Argument& output : op_.outputs) {
      if (output.name == k.name) check_tensor(output.type, k.name, kept[i], output.dims);
    }
  }
}

void Call::bind() {
  ensure_gemm_engine();
  for (const Argument& argument : arguments_) {
    if (argument.type == Type::kSequences) sequences_.emplace(bind_sequences(args_, cu_seqlens_));
  }
  if (given_pattern_) pattern_.emplace(args_, *given_pattern_, sequences_->longest());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    size_t at = 0;  // which argument
    for (size_t seen = 0; at < arguments_.size(); ++at) {
      if (is_tensor(arguments_[at].type) && seen++ == i) break;
    }
    if (at < arguments_.size() && arguments_[at].strided) continue;
    if (tensors_[i].tensor.defined()) tensors_[i].tensor = tensors_[i].tensor.contiguous();
  }
}

std::vector<Tensor> Call::make_results(bool keeps) {
  std::vector<Tensor> all;
  const auto add = [&](std::string_view name, Tensor t) {
    results_.push_back({name, t});
    all.push_back(std::move(t));
  };
  for (const Argument& output : op_.outputs) {
    add(output.name, args_.empty(output.dims, output.type == Type::kTensor  ? args_.dtype()
                                              : output.type == Type::kState ? args_.state_dtype()
                                                                            : at::kInt));
  }
  if (!keeps && !op_.kept_always) return all;
  const bool rounds = args_.state_dtype() != args_.dtype();
  for (const Kept& k : op_.kept) {
    if (k.type == Kept::Type::kOutput) continue;
    if (k.type == Kept::Type::kUnrounded && !rounds) {
      all.push_back(args_.empty_of({0}));
      continue;
    }
    add(k.name,
        args_.empty(k.dims, k.type == Kept::Type::kTensor ? args_.dtype() : args_.state_dtype()));
  }
  return all;
}

std::vector<Tensor> Call::make_gradients(const c10::List<bool>& needs) {
  std::vector<Tensor> all;
  size_t next = 0, tensor = 0;
  for (const Argument& argument : arguments_) {
    if (!is_tensor(argument.type)) continue;
    const Tensor& t = tensors_[tensor++].tensor;
    if (!argument.differentiable) continue;
    const bool needed = needs.get(next++) && t.defined();
    gradients_.push_back(
        {argument.name, needed ? at::empty_symint(t.sym_sizes(), t.options()) : Tensor()});
    all.push_back(needed ? gradients_.back().tensor : args_.empty_of({0}));
  }
  return all;
}

bool Call::has_outputs() const {
  return std::any_of(op_.outputs.begin(), op_.outputs.end(), [&](const Argument& output) {
    const std::vector<c10::SymInt> sizes = args_.sizes(output.dims);
    return std::all_of(sizes.begin(), sizes.end(), [](const c10::SymInt& n) { return n > 0; });
  });
}

const c10::IValue& Call::value(std::string_view name) const {
  size_t i = 0;
  while (arguments_.at(i).name != name) ++i;
  return values_[i];
}

void Call::at_least(std::string_view name, int64_t least) const {
  const auto given = value(name).toOptional<int64_t>();
  TORCH_CHECK_VALUE(!given || *given >= least, args_.op(), ": ", name, " is ", *given,
                    ", but must be at least ", least);
}

kernels::ReadLayout Call::reads(const char* coefficients) const {
  kernels::ReadLayout reads(rows(), sequences());
  TORCH_CHECK_VALUE(size("B") == 0 || size("nnz") == reads.nnz, args_.op(), ": ", coefficients,
                    " has ", size("nnz"),
                    " entries a head, but must have one for each of the pattern's ", reads.nnz,
                    " reads");
  return reads;
}

BoundRetrieval Call::retrieval(bool strictly_earlier) const {
  return BoundRetrieval(args_, tensor("indices"), sequences(), strictly_earlier);
}

const Tensor& Call::named(const std::vector<Named>& list, std::string_view name) {
  static const Tensor none;
  for (const Named& one : list) {
    if (one.name == name) return one.tensor;
  }
  return none;
}

const Tensor& Call::tensor(std::string_view name) const { return named(tensors_, name); }

}  // namespace hopmix::ops
