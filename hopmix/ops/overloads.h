// Each operator on a pattern comes twice: NAME takes (row_ptr, cols), NAME.spec takes the pattern
// as a string in their place. This makes both forms, for every kernel and for calls, out of one
// function on a PatternArg.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>
#include <string_view>
#include <utility>

#include "hopmix/ops/ops.h"
#include "hopmix/ops/tensors.h"

namespace hopmix::ops {

template <size_t>
using TensorArgument = const Tensor&;

template <typename Indices, typename R, typename... Tail>
struct Forms;

template <size_t... I, typename R, typename... Tail>
struct Forms<std::index_sequence<I...>, R, Tail...> {
  using Csr = R(TensorArgument<I>..., const Tensor&, const Tensor&, Tail...);
  using Spec = R(TensorArgument<I>..., std::string_view, Tail...);

  template <auto kFunction>
  static R csr(TensorArgument<I>... t, const Tensor& row_ptr, const Tensor& cols, Tail... tail) {
    return kFunction({t...}, PatternArg(row_ptr, cols), tail...);
  }

  template <auto kFunction>
  static R spec(TensorArgument<I>... t, std::string_view pattern, Tail... tail) {
    return kFunction({t...}, PatternArg(pattern), tail...);
  }

  static R call(const char* name, const Tensors<sizeof...(I)>& t, const PatternArg& pattern,
                Tail... tail) {
    auto& dispatcher = c10::Dispatcher::singleton();
    if (pattern.row_ptr.defined()) {
      return dispatcher.findSchemaOrThrow(name, "").typed<Csr>().call(t[I]..., pattern.row_ptr,
                                                                      pattern.cols, tail...);
    }
    return dispatcher.findSchemaOrThrow(name, "spec")
        .typed<Spec>()
        .call(t[I]..., pattern.spec, tail...);
  }
};

template <auto kFunction>
struct Overloads;

template <size_t N, typename R, typename... Tail,
          R (*kFunction)(const Tensors<N>&, const PatternArg&, Tail...)>
struct Overloads<kFunction> {
  using Both = Forms<std::make_index_sequence<N>, R, Tail...>;

  /// Registers kFunction as the kernel of both forms.
  static void implement(torch::Library& library, const std::string& name) {
    library.impl(name.c_str(), &Both::template csr<kFunction>);
    library.impl((name + ".spec").c_str(), &Both::template spec<kFunction>);
  }

  /// Calls the operator `name` (with its namespace), which has the signature of kFunction.
  static R call(const char* name, const Tensors<N>& tensors, const PatternArg& pattern,
                Tail... tail) {
    return Both::call(name, tensors, pattern, tail...);
  }
};

/// Declares NAME(tensors, Tensor row_ptr, Tensor cols, tail) and NAME.spec(tensors, str pattern,
/// tail).
inline void define_both(torch::Library& library, const std::string& name,
                        const std::string& tensors, const std::string& tail) {
  for (const auto& [overload, pattern] :
       {std::pair{"", "Tensor row_ptr, Tensor cols"}, std::pair{".spec", "str pattern"}}) {
    const std::string schema = name + overload + "(" + tensors + ", " + pattern + ", " + tail;
    library.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
  }
}

}  // namespace hopmix::ops
