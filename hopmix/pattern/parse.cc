// Recursive descent over the grammar of docs/patterns.md:
//   pattern := term { "|" term }
//   term    := NAME [ "(" arguments ")" ] | expression in k
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <limits>

#include "hopmix/base/error.h"
#include "hopmix/base/nearest.h"
#include "hopmix/base/utf8.h"
#include "hopmix/pattern/expression.h"
#include "hopmix/pattern/matrix_market.h"
#include "hopmix/pattern/node.h"
#include "hopmix/pattern/offsets.h"

namespace hopmix {
namespace {

using namespace terms;

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool is_control(char c) { return std::iscntrl(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool starts_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool continues_name(char c) { return starts_name(c) || is_digit(c); }

const std::vector<std::string>& pattern_names() {
  static const std::vector<std::string> names = {"dense",  "window", "offsets", "fib",
                                                 "nlogn",  "cached", "strided", "global",
                                                 "blocks", "random", "fenwick", "dag"};
  return names;
}

bool is_pattern_name(std::string_view name) {
  return std::find(pattern_names().begin(), pattern_names().end(), name) != pattern_names().end();
}

std::string quote(std::string_view text) { return "'" + std::string(text) + "'"; }

// The position of the first of `stops` at or after `at` that is outside parentheses.
size_t find_outside(std::string_view text, size_t at, std::string_view stops) {
  int depth = 0;
  for (; at < text.size(); ++at) {
    if (depth == 0 && stops.find(text[at]) != std::string_view::npos) break;
    if (text[at] == '(') ++depth;
    if (text[at] == ')') --depth;
  }
  return at;
}

// Merges two f patterns into one.
void join(Offsets& into, const Offsets& other) {
  const auto middle = static_cast<int64_t>(into.values.size());
  into.values.insert(into.values.end(), other.values.begin(), other.values.end());
  std::inplace_merge(into.values.begin(), into.values.begin() + middle, into.values.end());
  into.values.erase(std::unique(into.values.begin(), into.values.end()), into.values.end());
  into.first = std::min(into.first, other.first);
}

// Of several windows, the widest reads all.
void join(Window& into, const Window& other) { into.width = std::max(into.width, other.width); }

// Joins `term` with an earlier one of its kind; returns whether there is one.
template <typename Kind>
bool join_earlier(std::vector<Term>& terms, const Term& term) {
  const auto* added = std::get_if<Kind>(&term);
  if (!added) return false;
  for (Term& earlier : terms) {
    if (auto* into = std::get_if<Kind>(&earlier)) {
      join(*into, *added);
      return true;
    }
  }
  return false;
}

void add_term(std::vector<Term>& terms, Term term) {
  if (join_earlier<Offsets>(terms, term) || join_earlier<Window>(terms, term)) return;
  terms.push_back(std::move(term));
}

class Parser {
 public:
  Parser(const std::string& text, int64_t n) : text_(text), n_(n) {}

  std::vector<Term> all() {
    std::vector<Term> terms = pattern();
    if (at_ < text_.size()) unexpected("use | to join patterns");
    return terms;
  }

 private:
  // "pattern 'S': WHAT at character N[why]"; `at` counts from 0, messages from 1.
  [[noreturn]] void fail(size_t at, const std::string& what, const std::string& why = "") const {
    std::string line =
        "pattern " + quote(text_) + ": " + what + " at character " + std::to_string(at + 1) + why;
    // A line break in a file name must not split the message, nor may it have half a character.
    std::replace_if(
        line.begin(), line.end(), [](char c) { return is_control(c); }, '?');
    throw Error(valid_utf8(line));
  }

  [[noreturn]] void unexpected(const std::string& why) const {
    if (at_ == text_.size()) fail(at_, "unexpected end", "; " + why);
    const size_t length = first_utf8_character(rest()).length;
    fail(at_, "unexpected " + quote(text_.substr(at_, length)), "; " + why);
  }

  bool at_char(char c) const { return at_ < text_.size() && text_[at_] == c; }

  void expect(char c, const std::string& why) {
    if (!at_char(c)) unexpected(why);
    ++at_;
  }

  std::string_view rest() const { return std::string_view(text_).substr(at_); }

  std::string_view peek_name() const {
    std::string_view name = rest();
    if (name.empty() || !starts_name(name[0])) return {};
    return name.substr(0,
                       std::find_if_not(name.begin(), name.end(), continues_name) - name.begin());
  }

  std::vector<Term> pattern() {
    std::vector<Term> terms;
    add_term(terms, term());
    while (at_char('|')) {
      ++at_;
      add_term(terms, term());
    }
    return terms;
  }

  Term term() {
    if (at_ >= text_.size() || at_char('|') || at_char(')') || at_char(',')) {
      fail(at_, "a pattern is missing");
    }
    const std::string_view name = peek_name();
    if (!is_pattern_name(name)) return expression();
    at_ += name.size();
    if (name == "dense") return Dense{};
    if (name == "fenwick") return Fenwick{};
    if (name == "fib") return Offsets{fibonacci_offsets(n_)};
    if (name == "nlogn") return Offsets{nlogn_offsets(n_)};
    if (name == "window") return Window{arguments<1>("window(w)")[0]};
    if (name == "strided") return Strided{arguments<1>("strided(s)")[0]};
    if (name == "global") return Global{arguments<1>("global(g)")[0]};
    if (name == "blocks") return Blocks{arguments<1>("blocks(b)")[0]};
    if (name == "random") return random();
    if (name == "offsets") return offsets();
    if (name == "cached") return cached();
    return dag();
  }

  // A whole number of at least `least`, up to the next comma or parenthesis.
  int64_t argument(int64_t least) {
    const size_t begin = at_;
    at_ = find_outside(text_, at_, ",)|");
    const std::string_view word = std::string_view(text_).substr(begin, at_ - begin);
    const auto reject = [&](const std::string& why) {
      fail(begin, "argument", ": " + std::string(word) + " " + why);
    };
    if (word.empty()) fail(begin, "an argument is missing");
    int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (end != word.data() + word.size()) reject("must be a whole number");
    if (error == std::errc::result_out_of_range) {
      reject("must be at most " + std::to_string(std::numeric_limits<int64_t>::max()));
    }
    if (error != std::errc()) reject("must be a whole number");
    if (value < least) reject("must be at least " + std::to_string(least));
    return value;
  }

  template <size_t N>
  std::array<int64_t, N> arguments(const std::string& form, std::array<int64_t, N> least) {
    const std::string why = "expected " + form;
    std::array<int64_t, N> values;
    expect('(', why);
    for (size_t a = 0; a < N; ++a) {
      if (a > 0) expect(',', why);
      values[a] = argument(least[a]);
    }
    expect(')', why);
    return values;
  }
  template <size_t N>
  std::array<int64_t, N> arguments(const std::string& form) {
    std::array<int64_t, N> least;
    least.fill(1);
    return arguments<N>(form, least);
  }

  Term random() {
    const auto [reads, seed] = arguments<2>("random(r,seed)", {1, 0});
    return Random{reads, static_cast<uint64_t>(seed)};
  }

  Term offsets() {
    const std::string why = "expected offsets(1,2,5)";
    expect('(', why);
    Offsets f;
    int64_t last = 0;
    for (bool more = true; more;) {
      const size_t begin = at_;
      const int64_t value = argument(1);
      if (value <= last) {
        fail(begin, "argument",
             ": " + std::to_string(value) + " must exceed " + std::to_string(last));
      }
      if (last == 0) f.first = static_cast<double>(value);
      last = value;
      if (value < n_) f.values.push_back(value);
      more = at_char(',');
      if (more) ++at_;
    }
    expect(')', why);
    return f;
  }

  [[noreturn]] void cached_needs_offsets(size_t begin, size_t end) const {
    fail(begin, quote(text_.substr(begin, end - begin)),
         " must be an expression in k, offsets(...), fib or nlogn: cached needs offsets");
  }

  Term cached() {
    const std::string why = "expected cached(P)";
    const size_t name = at_ - std::string_view("cached").size();
    // Check before parsing, so that a deeply nested spec cannot overflow the stack.
    if (in_cached_) cached_needs_offsets(name, find_outside(text_, name, "|,)"));
    expect('(', why);
    const size_t begin = at_;
    in_cached_ = true;
    std::vector<Term> terms = pattern();
    in_cached_ = false;
    const std::string inner = quote(text_.substr(begin, at_ - begin));
    if (!at_char(')')) unexpected(why);
    auto* f = terms.size() == 1 ? std::get_if<Offsets>(&terms.front()) : nullptr;
    if (!f) cached_needs_offsets(begin, at_);
    if (f->first != 1) fail(begin, inner, " must have f(0) = 1 for cached");
    ++at_;
    std::vector<int64_t> spacing = cached_spacing(f->values);
    return Cached{std::move(f->values), std::move(spacing)};
  }

  Term dag() {
    expect('(', "expected dag(file)");
    const size_t begin = at_;
    at_ = find_outside(text_, at_, ")");
    const std::string file = text_.substr(begin, at_ - begin);
    if (file.empty()) fail(begin, "a file name is missing");
    expect(')', "expected dag(file)");
    try {
      Dag dag{read_matrix_market(file), file};
      if (dag.rows.rows() < n_) {
        throw Error(file + " has " + std::to_string(dag.rows.rows()) +
                    " rows, but n = " + std::to_string(n_) + " tokens need one each");
      }
      return dag;
    } catch (const Error& error) {
      fail(begin, "file", std::string(": ") + error.what());
    }
  }

  Term expression() {
    const size_t begin = at_;
    const size_t end = find_outside(text_, at_, "|,)");
    const std::string_view body = std::string_view(text_).substr(begin, end - begin);
    check_names(begin, end);
    try {
      Offsets f = evaluate_expression(body, n_);
      at_ = end;
      return f;
    } catch (const ExpressionError& error) {
      fail(begin + error.at, "expression", std::string(": ") + error.what());
    }
  }

  // Every name must be k or known to muParser; a number such as 1e3 contains no name.
  void check_names(size_t begin, size_t end) const {
    const std::vector<std::string>& known = expression_names();
    for (size_t i = begin; i < end;) {
      if (is_digit(text_[i]) || text_[i] == '.') {
        i = skip_number(i, end);
      } else if (starts_name(text_[i])) {
        const size_t start = i;
        while (i < end && continues_name(text_[i])) ++i;
        const std::string name = text_.substr(start, i - start);
        if (name == "k" || std::find(known.begin(), known.end(), name) != known.end()) continue;
        if (is_pattern_name(name))
          fail(start, quote(name), " cannot be part of an expression; use | to join patterns");
        fail(start, "unknown name " + quote(name), suggest(name, known));
      } else {
        ++i;
      }
    }
  }

  size_t skip_number(size_t i, size_t end) const {
    while (i < end && (is_digit(text_[i]) || text_[i] == '.')) ++i;
    if (i >= end || (text_[i] != 'e' && text_[i] != 'E')) return i;
    size_t exponent = i + 1;
    if (exponent < end && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
    if (exponent >= end || !is_digit(text_[exponent])) return i;
    while (exponent < end && is_digit(text_[exponent])) ++exponent;
    return exponent;
  }

  // Patterns come first, because of two equally close names they are likelier. The functions are
  // not worth listing.
  static std::string suggest(const std::string& name, const std::vector<std::string>& functions) {
    std::vector<std::string> patterns = pattern_names(), all = patterns;
    patterns.push_back("an expression in k");
    all.push_back("k");
    all.insert(all.end(), functions.begin(), functions.end());
    return nearest_name(name, all).empty() ? suggestion(name, patterns) : suggestion(name, all);
  }

  const std::string& text_;
  const int64_t n_;
  size_t at_ = 0;
  bool in_cached_ = false;
};

}  // namespace

std::string strip_spec(std::string_view spec) {
  std::string text;
  for (size_t i = 0; i < spec.size(); ++i) {
    if (is_space(spec[i])) continue;
    text += spec[i];
    const bool opens_file =
        text.ends_with("dag(") && (text.size() == 4 || !continues_name(text[text.size() - 5]));
    if (!opens_file) continue;
    const size_t end = find_outside(spec, i + 1, ")");
    std::string_view file = spec.substr(i + 1, end - i - 1);
    while (!file.empty() && is_space(file.front())) file.remove_prefix(1);
    while (!file.empty() && is_space(file.back())) file.remove_suffix(1);
    text += file;
    i = end - 1;
  }
  return text;
}

std::vector<Term> parse_terms(const std::string& spec, int64_t n) { return Parser(spec, n).all(); }

}  // namespace hopmix
