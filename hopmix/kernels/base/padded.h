// Rows of numbers padded for whole vectors: the scratch memory of the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

namespace hopmix::kernels {

/// Rows are padded to a multiple of this many elements, which is a multiple of the vector size of
/// every instruction set, so that no loop over a row needs a tail.
inline constexpr int64_t kPad = 16;

constexpr int64_t padded(int64_t width) { return (width + kPad - 1) / kPad * kPad; }

namespace scratch {

/// `bytes` of uninitialized memory, aligned to a cache line; throws std::bad_alloc. Memory that a
/// thread frees is kept for its next call, up to 64 MiB, because fresh pages cost more than a short
/// kernel. The thread that allocates should also free; otherwise one thread collects what the
/// others must allocate anew.
void* take(size_t bytes);
void give_back(void* memory) noexcept;

/// The memory kept by this thread.
size_t kept_bytes();

}  // namespace scratch

/// Uninitialized scratch memory.
template <typename A>
class Buffer {
 public:
  explicit Buffer(int64_t count = 0) {
    if (count == 0) return;
    data_.reset(static_cast<A*>(scratch::take(static_cast<size_t>(count) * sizeof(A))));
#ifdef HOPMIX_NAN_SCRATCH  // under test: what is read before it was written shows
    for (int64_t i = 0; i < count; ++i) data_.get()[i] = std::numeric_limits<A>::quiet_NaN();
#endif
  }
  A* data() const { return data_.get(); }
  A* operator+(int64_t offset) const { return data_.get() + offset; }
  operator A*() const { return data_.get(); }  // NOLINT: implicit

 private:
  struct GiveBack {
    void operator()(A* p) const { scratch::give_back(p); }
  };
  std::unique_ptr<A, GiveBack> data_;
};

/// The location of rows of A: row i of a block is at data + i * stride.
template <typename A>
struct RowsAt {
  A* data = nullptr;
  int64_t stride = 0;
  A* operator[](int64_t i) const { return data + i * stride; }
};

/// Rows of a block, by token: row i at rows[i - first].
template <typename A>
struct BlockRows {
  RowsAt<A> rows;
  int64_t first = 0;
  A* operator[](int64_t i) const { return rows[i - first]; }
};

/// RowsAt with memory of its own.
template <typename A>
class PaddedRows {
 public:
  PaddedRows() = default;
  PaddedRows(int64_t rows, int64_t width) : stride_(padded(width)), buffer_(rows * stride_) {}
  RowsAt<A> view() const { return {buffer_.data(), stride_}; }
  A* operator[](int64_t i) const { return view()[i]; }

 private:
  int64_t stride_ = 0;
  Buffer<A> buffer_;
};

}  // namespace hopmix::kernels
