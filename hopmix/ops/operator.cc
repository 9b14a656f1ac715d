#include "hopmix/ops/operator.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <algorithm>

#include "hopmix/ops/operator_kernels.h"

namespace hopmix::ops {
namespace {

using Stack = torch::jit::Stack;
using Type = Argument::Type;

// The name in "Tensor(a!) state", "float? scale=None".
std::string name_in(const std::string& schema) {
  const size_t space = schema.find(' ');
  return schema.substr(space + 1, schema.find('=') - space - 1);
}

Argument make(Type type, const char* schema, Dims dims, bool differentiable) {
  return {type, schema, std::move(dims), differentiable, false, name_in(schema)};
}

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : ", ") + part;
  return out;
}

}  // namespace

Argument tensor(const char* schema, Dims dims) {
  return make(Type::kTensor, schema, std::move(dims), /*differentiable=*/true);
}
Argument state(const char* schema, Dims dims) {
  return make(Type::kState, schema, std::move(dims), /*differentiable=*/true);
}
Argument positions(const char* schema, Dims dims) {
  return make(Type::kPositions, schema, std::move(dims), /*differentiable=*/false);
}
Argument unchecked(const char* schema) {
  return make(Type::kUnchecked, schema, {}, /*differentiable=*/true);
}
Argument constant(Argument argument) {
  argument.differentiable = false;
  return argument;
}
Argument strided(Argument argument) {
  argument.strided = true;
  return argument;
}
Argument retrieved_positions() {
  return make(Type::kRetrieved, "Tensor indices", {}, /*differentiable=*/false);
}
Argument pattern_rows() {
  return make(Type::kPattern, "str pattern", {}, /*differentiable=*/false);
}
Argument sequences() {
  return make(Type::kSequences, "Tensor? cu_seqlens=None", {}, /*differentiable=*/false);
}
Argument option(const char* schema) {
  return make(Type::kOption, schema, {}, /*differentiable=*/false);
}

std::vector<Argument> queries_keys_values(std::vector<Argument> rest) {
  std::vector<Argument> all = {tensor("Tensor q", {"B", "T", "H", "DK"}),
                               tensor("Tensor k", {"B", "T", "G", "DK"}),
                               tensor("Tensor v", {"B", "T", "G", "DV"})};
  for (Argument& argument : rest) all.push_back(std::move(argument));
  return all;
}

Kept output(const char* name) { return {Kept::Type::kOutput, name}; }
Kept kept(const char* name, Dims dims) { return {Kept::Type::kTensor, name, std::move(dims)}; }
Kept kept_state(const char* name, Dims dims) { return {Kept::Type::kState, name, std::move(dims)}; }
Kept unrounded(const char* name, const char* of, Dims dims) {
  return {Kept::Type::kUnrounded, name, std::move(dims), of};
}

namespace {

template <typename F>
class Boxed final : public c10::OperatorKernel {
 public:
  explicit Boxed(F f) : f_(std::move(f)) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) { f_(*stack); }

 private:
  F f_;
};

template <typename F>
torch::CppFunction boxed(F f) {
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Boxed<F>>(std::move(f)));
}

}  // namespace

struct Operator::Registered {
  std::vector<std::unique_ptr<OperatorForm>> forms;  // by the tensors of a pattern, by its spec
  std::vector<torch::Library> libraries;             // what they register goes with them
};

Operator::Operator(Description description) {
  const auto op = std::make_shared<const Description>(std::move(description));
  auto registered = std::make_unique<Registered>();
  const auto open = [&](torch::Library::Kind kind, std::optional<c10::DispatchKey> key) {
    registered->libraries.emplace_back(kind, "hopmix", key, __FILE__, __LINE__);
  };
  registered->libraries.reserve(5);
  open(torch::Library::FRAGMENT, std::nullopt);
  for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::Meta, c10::DispatchKey::Autograd,
                         c10::DispatchKey::ADInplaceOrView}) {
    open(torch::Library::IMPL, key);
  }
  auto &schemas = registered->libraries[0], &cpu = registered->libraries[1],
       &meta = registered->libraries[2], &autograd = registered->libraries[3],
       &versions = registered->libraries[4];

  const bool on_pattern = std::any_of(op->arguments.begin(), op->arguments.end(),
                                      [](const Argument& a) { return a.type == Type::kPattern; });
  const bool keeps = std::any_of(op->kept.begin(), op->kept.end(),
                                 [](const Kept& k) { return k.type != Kept::Type::kOutput; });
  for (const bool spec : {false, true}) {
    if (spec && !on_pattern) continue;
    OperatorForm* const form =
        registered->forms.emplace_back(std::make_unique<OperatorForm>()).get();
    form->op = op;
    for (const Argument& argument : op->arguments) {
      if (argument.type == Type::kPattern && !spec) {
        for (const char* schema : {"Tensor row_ptr", "Tensor cols"}) {
          form->arguments.push_back(make(Type::kPattern, schema, {}, /*differentiable=*/false));
        }
      } else {
        form->arguments.push_back(argument);
      }
    }
    std::vector<std::string> with_defaults, required, outputs, given;
    for (size_t i = 0; i < form->arguments.size(); ++i) {
      const Argument& argument = form->arguments[i];
      with_defaults.push_back(argument.schema);
      required.push_back(argument.schema.substr(0, argument.schema.find('=')));
      if (argument.differentiable) form->differentiable.push_back(i);
    }
    for (const Argument& argument : op->outputs) {
      outputs.push_back("Tensor " + argument.name);
      if (!argument.differentiable) continue;
      given.push_back((op->some_gradients ? "Tensor? grad_" : "Tensor grad_") + argument.name);
    }
    if (!op->kept.empty()) given.emplace_back("Tensor[] kept");
    given.insert(given.end(), required.begin(), required.end());
    given.push_back("bool[" + std::to_string(form->differentiable.size()) + "] needs");

    const std::string suffix = spec ? ".spec" : "";
    const auto define = [&](const std::string& name, const std::string& arguments,
                            const std::string& gives) {
      schemas.def((name + suffix + "(" + arguments + ") -> " + gives).c_str(),
                  {at::Tag::pt2_compliant_tag});
      return c10::Dispatcher::singleton().findSchemaOrThrow(("hopmix::" + name).c_str(),
                                                            spec ? "spec" : "");
    };
    const std::string name = op->name;
    form->plain = define(name, joined(with_defaults),
                         outputs.size() == 1 ? "Tensor" : "(" + joined(outputs) + ")");
    const auto implement = [&](torch::Library& library, const std::string& which, auto kernel) {
      library.impl((which + suffix).c_str(), boxed(std::move(kernel)));
    };
    for (const bool runs : {true, false}) {
      implement(runs ? cpu : meta, name,
                [form, runs](Stack& stack) { forward_kernel(*form, false, runs, stack); });
    }
    implement(autograd, name, [form](Stack& stack) { autograd_kernel(*form, stack); });
    if (joined(with_defaults).find("(a!)") != std::string::npos) {
      implement(versions, name, [form](Stack& stack) { versioned_kernel(*form, stack); });
    }
    const auto underivable = [&](const std::string& which) {
      autograd.impl((which + suffix).c_str(), torch::autograd::autogradNotImplementedFallback());
    };
    if (keeps) {
      const std::string inner = "_" + name;
      form->keeping = define(inner, joined(required), "Tensor[]");
      for (const bool runs : {true, false}) {
        implement(runs ? cpu : meta, inner,
                  [form, runs](Stack& stack) { forward_kernel(*form, true, runs, stack); });
      }
      underivable(inner);
    }
    if (op->backward != nullptr) {
      const std::string inner = name + "_backward";
      form->backward = define(inner, joined(given), "Tensor[]");
      for (const bool runs : {true, false}) {
        implement(runs ? cpu : meta, inner,
                  [form, runs](Stack& stack) { backward_kernel(*form, runs, stack); });
      }
      underivable(inner);
    }
  }
  registered_ = std::move(registered);
}

Operator::~Operator() = default;

void Operator::call(bool spec, torch::jit::Stack& stack) const {
  registered_->forms[spec ? 1 : 0]->plain->callBoxed(stack);
}

}  // namespace hopmix::ops
