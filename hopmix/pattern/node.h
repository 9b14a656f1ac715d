// The parsed description of a pattern. Private to this folder.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "hopmix/pattern/pattern.h"

namespace hopmix {
namespace terms {

struct Dense {};
struct Window {
  int64_t width;
};
/// An f pattern: expressions in k, offsets(...), fib, nlogn, and unions of them.
struct Offsets {
  std::vector<int64_t> values;  // f(k) for every f(k) < n, ascending
  double first = 1;             // f(0), which may be n or more
};
struct Cached {
  std::vector<int64_t> offsets;  // f(k) for every f(k) < n
  std::vector<int64_t> spacing;  // a_k: reads for f(k) are rounded up to a multiple of it
};
struct Strided {
  int64_t stride;
};
struct Global {
  int64_t count;
};
struct Blocks {
  int64_t length;
};
struct Random {
  int64_t reads;
  uint64_t seed;
};
struct Fenwick {};
struct Dag {
  Csr rows;  // at least n rows
  std::string file;
};

}  // namespace terms

using Term =
    std::variant<terms::Dense, terms::Window, terms::Offsets, terms::Cached, terms::Strided,
                 terms::Global, terms::Blocks, terms::Random, terms::Fenwick, terms::Dag>;

/// A union of terms. At most one is Offsets and one Window, because the parser merges them.
struct Pattern::Node {
  std::vector<Term> terms;
};

/// Removes white space from `spec`, except inside the file name of dag(...), which is only trimmed.
std::string strip_spec(std::string_view spec);

/// Parses a stripped spec for n tokens. Throws Error with the position in `spec`, counted from 1.
std::vector<Term> parse_terms(const std::string& spec, int64_t n);

}  // namespace hopmix
