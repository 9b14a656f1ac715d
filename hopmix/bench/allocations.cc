#include "hopmix/bench/allocations.h"

#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HOPMIX_COUNTS_ALLOCATIONS 1
#endif

#ifdef HOPMIX_COUNTS_ALLOCATIONS

// glibc's own allocator, under names that remain when malloc is replaced.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* pointer, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void __libc_free(void* pointer);
}

namespace {

// malloc has no argument to pass a counter in.
std::atomic<bool> counting{false};
std::atomic<int64_t> live{0}, peak{0};

void add(int64_t bytes) {
  const int64_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t most = peak.load(std::memory_order_relaxed);
  while (now > most && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
}

void* counted(void* pointer) {
  if (counting.load(std::memory_order_relaxed) && pointer != nullptr) {
    add(static_cast<int64_t>(malloc_usable_size(pointer)));
  }
  return pointer;
}

void uncount(void* pointer) {
  if (counting.load(std::memory_order_relaxed) && pointer != nullptr) {
    live.fetch_sub(static_cast<int64_t>(malloc_usable_size(pointer)), std::memory_order_relaxed);
  }
}

}  // namespace

// operator new, at::empty and the rest end here.
extern "C" {

void* malloc(size_t size) { return counted(__libc_malloc(size)); }

void* calloc(size_t count, size_t size) { return counted(__libc_calloc(count, size)); }

void* realloc(void* pointer, size_t size) {
  if (!counting.load(std::memory_order_relaxed)) return __libc_realloc(pointer, size);
  const auto before = static_cast<int64_t>(malloc_usable_size(pointer));
  void* moved = __libc_realloc(pointer, size);
  if (moved != nullptr || size == 0) {
    live.fetch_sub(before, std::memory_order_relaxed);
    counted(moved);
  }
  return moved;
}

void free(void* pointer) {
  uncount(pointer);
  __libc_free(pointer);
}

void* memalign(size_t alignment, size_t size) { return counted(__libc_memalign(alignment, size)); }

void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void** pointer, size_t alignment, size_t size) {
  if (alignment % sizeof(void*) != 0 || (alignment & (alignment - 1)) != 0 || alignment == 0) {
    return EINVAL;
  }
  void* found = memalign(alignment, size);
  if (found == nullptr) return ENOMEM;
  *pointer = found;
  return 0;
}

}  // extern "C"

namespace hopmix::bench {

std::optional<int64_t> peak_allocated(const std::function<void()>& body) {
  struct Guard {
    Guard() {
      live = 0;
      peak = 0;
      counting = true;
    }
    ~Guard() { counting = false; }
  };
  {
    const Guard guard;
    body();
  }
  return peak.load();
}

}  // namespace hopmix::bench

#else

namespace hopmix::bench {

std::optional<int64_t> peak_allocated(const std::function<void()>& body) {
  body();
  return std::nullopt;
}

}  // namespace hopmix::bench

#endif
