// An operator of PyTorch from one description. What follows from it:
//   NAME(arguments) -> outputs                       the schema, with NAME.spec on a pattern's spec
//   _NAME(arguments) -> Tensor[]                     outputs, then what is kept for the backward;
//                                                    there if that is more than outputs
//   NAME_backward(grads, kept, arguments, needs) -> Tensor[]
//                                                    a gradient for each differentiable input; an
//                                                    operator, so that torch.compile can trace it
// with checks, kernels for CPU and Meta, autograd, and call() for C++. Kernels are boxed: one
// function serves all operators, and an operator is a table of data and two functions.
//
// Differentiating a gradient is an error, and so is forward mode.
#pragma once

#include <ATen/core/stack.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "hopmix/ops/ops.h"

namespace hopmix::ops {

class Call;

/// Names of sizes, as in Arguments::tensor().
using Dims = std::vector<const char*>;

/// One argument, or one output.
struct Argument {
  enum class Type {
    kTensor,     // of the dtype of the first tensor
    kState,      // float64 if that is, else float32
    kPositions,  // int32
    kRetrieved,  // int32 positions for heads
    kUnchecked,
    kPattern,    // row_ptr and cols, or the spec
    kSequences,  // cu_seqlens
    kOption      // anything else
  };

  Type type;
  std::string schema;  // "Tensor q", "Tensor? bias=None", "float? scale=None"
  Dims dims = {};
  bool differentiable = false;
  bool strided = false;   // kernels take it with any strides
  std::string name = {};  // from the schema
};

/// By its schema and its dimensions by name, of which a leading "..." stands for any number.
Argument tensor(const char* schema, Dims dims);
Argument state(const char* schema, Dims dims);
Argument positions(const char* schema, Dims dims);
/// A tensor that only the description's `check` looks at.
Argument unchecked(const char* schema);
/// The same argument, which has no gradient.
Argument constant(Argument argument);
/// The same argument, which is not made contiguous.
Argument strided(Argument argument);
Argument pattern_rows();
/// indices [B,T,H,W], or [B,T,G,W] for all query heads of a key/value head.
Argument retrieved_positions();
/// cu_seqlens, which makes N the number of sequences.
Argument sequences();
Argument option(const char* schema);

/// q [B,T,H,DK], k [B,T,G,DK] and v [B,T,G,DV], then `rest`.
std::vector<Argument> queries_keys_values(std::vector<Argument> rest);

/// What the backward is given of the forward pass: an output by its name, or a tensor that _NAME
/// gives beside the outputs.
struct Kept {
  enum class Type { kOutput, kTensor, kState, kUnrounded };
  Type type;
  const char* name;
  Dims dims = {};
  const char* of = nullptr;
};

Kept output(const char* name);
Kept kept(const char* name, Dims dims);
Kept kept_state(const char* name, Dims dims);
/// Output `of` in the type of sums, as it was before it was rounded to bfloat16; for other dtypes,
/// where it is the output itself, a forward pass is not asked for it.
Kept unrounded(const char* name, const char* of, Dims dims);

struct Description {
  const char* name;
  std::vector<Argument> arguments;
  std::vector<Argument> outputs;
  std::vector<Kept> kept = {};
  bool kept_always = false;     // the forward writes to it also where no backward follows
  bool some_gradients = false;  // the backward takes null for the gradient of an output
  /// What dimensions alone do not say; it may define sizes of outputs and of what is kept.
  void (*check)(Call&) = nullptr;
  /// Called unless all outputs are empty.
  void (*forward)(const Call&);
  /// Null: no derivative.
  void (*backward)(const Call&) = nullptr;
};

/// Registers itself; lives as long as the library.
class Operator {
 public:
  explicit Operator(Description description);
  ~Operator();
  Operator(const Operator&) = delete;

  /// Calls the operator by PyTorch's dispatcher: R is Tensor or a tuple of them, the arguments are
  /// those of the schema, a pattern as PatternArg.
  template <typename R, typename... A>
  R call(const A&... arguments) const {
    torch::jit::Stack stack;
    stack.reserve(sizeof...(A) + 1);
    bool spec = false;
    (push(stack, arguments, spec), ...);
    call(spec, stack);
    if constexpr (std::is_same_v<R, Tensor>) {
      return std::move(stack[0]).toTensor();
    } else {
      return [&]<size_t... I>(std::index_sequence<I...>) {
        return R{std::move(stack[I]).toTensor()...};
      }
      (std::make_index_sequence<std::tuple_size_v<R>>());
    }
  }

 private:
  template <typename T>
  static void push(torch::jit::Stack& stack, const T& value, bool& spec) {
    if constexpr (std::is_same_v<T, PatternArg>) {
      spec = !value.row_ptr.defined();
      if (spec) {
        stack.emplace_back(std::string(value.spec));
      } else {
        stack.emplace_back(value.row_ptr);
        stack.emplace_back(value.cols);
      }
    } else {
      stack.emplace_back(value);
    }
  }

  void call(bool spec, torch::jit::Stack& stack) const;

  struct Registered;
  std::unique_ptr<const Registered> registered_;
};

}  // namespace hopmix::ops
