#include "hopmix/pattern/expression.h"

#include <muParser.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "hopmix/pattern/offsets.h"

namespace hopmix {
namespace {

mu::Parser make_parser() {
  mu::Parser parser;
  parser.DefineFun("floor", static_cast<double (*)(double)>(std::floor));
  parser.DefineFun("ceil", static_cast<double (*)(double)>(std::ceil));
  return parser;
}

// The shortest decimal text that parses back to v.
std::string number(double v) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), v).ptr};
}

std::string f_of(int64_t k, double v) { return "f(" + std::to_string(k) + ") = " + number(v); }

// muParser's message in our style, without its position.
std::string plain_message(const mu::ParserError& error) {
  std::string message = error.GetMsg();
  for (const char* place :
       {" found at position", " at position", " at expression position", " (position"}) {
    message.resize(std::min(message.size(), message.find(place)));
  }
  std::replace(message.begin(), message.end(), '"', '\'');
  while (!message.empty() && (message.back() == '.' || message.back() == '!')) message.pop_back();
  if (message.ends_with(" '")) message.erase(message.size() - 2, 1);
  if (!message.empty())
    message[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(message[0])));
  return message;
}

// muParser would accept an assignment to k.
void reject_assignment(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '=') continue;
    const bool after =
        i > 0 && std::string_view("=<>!").find(text[i - 1]) != std::string_view::npos;
    const bool before = i + 1 < text.size() && text[i + 1] == '=';
    if (!after && !before) throw ExpressionError(i, "'=' is not supported; == compares");
  }
}

}  // namespace

const std::vector<std::string>& expression_names() {
  static const std::vector<std::string> all = [] {  // building a parser is slow
    const mu::Parser parser = make_parser();
    std::vector<std::string> names;
    for (const auto& [name, function] : parser.GetFunDef()) names.push_back(name);
    for (const auto& [name, value] : parser.GetConst()) names.push_back(name);
    return names;
  }();
  return all;
}

terms::Offsets evaluate_expression(std::string_view text, int64_t n) {
  reject_assignment(text);
  mu::Parser parser = make_parser();
  double k = 0;
  parser.DefineVar("k", &k);
  try {
    parser.SetExpr(std::string(text));
    if (!parser.GetUsedVar().contains("k")) {
      throw ExpressionError(0, "has no k; use offsets(...) for fixed offsets");
    }
    terms::Offsets f;
    f.first = parser.Eval();
    double last = 0;
    for (int64_t at = 0;; ++at) {
      k = static_cast<double>(at);
      const double value = parser.Eval();
      if (!std::isfinite(value)) throw ExpressionError(0, f_of(at, value) + " must be finite");
      if (at == 0 && value < 1) throw ExpressionError(0, f_of(0, value) + " must be at least 1");
      if (at > 0 && value <= last) {
        throw ExpressionError(0, f_of(at, value) + " must exceed " + f_of(at - 1, last));
      }
      if (value >= static_cast<double>(n)) return f;
      if (value != std::rint(value))
        throw ExpressionError(0, f_of(at, value) + " must be a whole number");
      if (at >= kMaxOffsets) {
        throw ExpressionError(0, "more than " + std::to_string(kMaxOffsets) +
                                     " offsets lie below n = " + std::to_string(n) +
                                     "; use dense or window(w)");
      }
      f.values.push_back(static_cast<int64_t>(value));
      last = value;
    }
  } catch (const mu::ParserError& error) {
    const int at = error.GetPos();
    throw ExpressionError(at < 0 ? 0 : std::min<size_t>(at, text.size()), plain_message(error));
  }
}

}  // namespace hopmix
