// Rows of one head of one sequence, in a tensor [tokens, heads, width], as padded rows of the type
// that sums are made in.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/index.h"
#include "hopmix/kernels/base/padded.h"
#include "hopmix/kernels/base/sequences.h"

namespace hopmix::kernels {

/// to = row `from` of `width` numbers, padded with zeros.
template <typename T>
void load_row(const T* from, int64_t width, Accumulator<T>* to) {
  for (int64_t c = 0; c < width; ++c) to[c] = static_cast<Accumulator<T>>(from[c]);
  std::fill(to + width, to + padded(width), Accumulator<T>{0});
}

/// Token i of the sequence lies at data + i * stride; T may be const. Without data there is nothing
/// to read or write.
template <typename T>
struct HeadOf {
  using Value = std::remove_const_t<T>;
  using A = Accumulator<Value>;
  using Element = std::conditional_t<std::is_const_v<T>, const A, A>;

  T* data = nullptr;
  int64_t stride = 0, width = 0;

  HeadOf() = default;
  HeadOf(T* x, const Sequences& all, const Sequence& s, int64_t heads, int64_t head, int64_t w)
      : data(x == nullptr ? nullptr : x + head_offset(all.first_token(s), heads, head, w)),
        stride(heads * w),
        width(w) {}

  /// A matrix of its own.
  HeadOf(T* x, int64_t w) : data(x), stride(w), width(w) {}

  T* operator[](int64_t i) const { return data + i * stride; }
  explicit operator bool() const { return data != nullptr; }

  /// Whether vectors may read and write the rows where they lie.
  static constexpr bool kSameType = std::is_same_v<Value, A>;
  bool direct() const { return kSameType && width % kPad == 0; }

  /// The rows as a matrix that aligned vectors may read in place, if they lie like one; else null.
  const A* matrix() const {
    if constexpr (kSameType) {
      const bool aligned = reinterpret_cast<uintptr_t>(data) % (kPad * sizeof(float)) == 0;
      if (direct() && stride == width && aligned) return data;
    }
    return nullptr;
  }

  /// Memory for up to `most` rows of a block, if vectors need them copied.
  PaddedRows<A> copy(int64_t most) const {
    return data == nullptr || direct() ? PaddedRows<A>() : PaddedRows<A>(most, width);
  }

  /// The block that starts at row `first`, where it lies or in `copy`. Of rows that are read,
  /// load() comes first; after those that are written, store().
  BlockRows<Element> block(const PaddedRows<A>& copy, int64_t first) const {
    if constexpr (kSameType) {
      if (data != nullptr && direct()) return {{(*this)[first], stride}, first};
    }
    return {{copy[0], copy.view().stride}, first};
  }

  /// Rows [begin, end) of the block that starts at row `first`, padded with zeros.
  void load(const PaddedRows<A>& copy, int64_t first, int64_t begin, int64_t end) const {
    if (data == nullptr || direct()) return;
    for (int64_t i = begin; i < end; ++i) load_row<Value>((*this)[i], width, copy[i - first]);
  }

  /// Puts columns [from, to) of rows [begin, end) where they belong.
  void store(const PaddedRows<A>& copy, int64_t first, int64_t begin, int64_t end, int64_t from,
             int64_t to) const {
    if (data == nullptr || direct()) return;
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t c = from; c < std::min(to, width); ++c) {
        (*this)[i][c] = static_cast<T>(copy[i - first][c]);
      }
    }
  }

  /// One number a row: rows [begin, end) of the block that starts at `first`, to[0] being its own.
  void load_numbers(int64_t first, int64_t begin, int64_t end, A* to) const {
    for (int64_t i = begin; i < end; ++i) to[i - first] = static_cast<A>(*(*this)[i]);
  }
  void store_numbers(int64_t first, int64_t begin, int64_t end, const A* from) const {
    for (int64_t i = begin; data != nullptr && i < end; ++i) {
      *(*this)[i] = static_cast<T>(from[i - first]);
    }
  }
};

/// Query heads [first, first + count) of one sequence, that read one key/value head.
struct HeadGroup {
  const Sequences& all;
  const Sequence& s;
  int64_t heads, kv_heads, first, count;

  template <typename Inputs>
  HeadGroup(const Inputs& in, int64_t sequence, int64_t first_head, int64_t how_many)
      : all(in.sequences),
        s(all.list[sequence]),
        heads(in.heads),
        kv_heads(in.kv_heads),
        first(first_head),
        count(how_many) {}

  /// The h-th of them in x [tokens, heads, width].
  template <typename T>
  HeadOf<T> query(int64_t h, T* x, int64_t width) const {
    return {x, all, s, heads, first + h, width};
  }

  /// What they share, in x [tokens, kv_heads, width].
  template <typename T>
  HeadOf<T> shared(T* x, int64_t width) const {
    return {x, all, s, kv_heads, first / (heads / kv_heads), width};
  }
};

/// The same rows, to read.
template <typename A>
BlockRows<const A> read_only(const BlockRows<A>& rows) {
  return {{rows.rows.data, rows.rows.stride}, rows.first};
}

}  // namespace hopmix::kernels
