#include "hopmix/kernels/base/padded.h"

#include <cstdlib>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace hopmix::kernels::scratch {
namespace {

// Two lines: the hardware fetches them in pairs, and neighbours must not share one.
constexpr size_t kLine = 128, kLargePage = size_t{2} << 20, kLarge = 8 * kLargePage;
constexpr size_t kKept = size_t{64} << 20;

// In front of each block, on a line of its own.
struct Header {
  size_t bytes;
};

// Blocks that one thread gave back, the last one last.
struct Kept {
  struct Block {
    size_t bytes;  // here too: a search need not touch the blocks
    Header* header;
  };
  std::vector<Block> blocks;
  size_t bytes = 0;

  ~Kept() {
    for (const Block& block : blocks) std::free(block.header);
  }
};

Kept& kept() {
  thread_local Kept blocks;
  return blocks;
}

void* memory_of(Header* block) { return reinterpret_cast<char*>(block) + kLine; }
Header* block_of(void* memory) {
  return reinterpret_cast<Header*>(static_cast<char*>(memory) - kLine);
}

Header* allocate(size_t bytes) {
  // Rows far apart are read: with small pages each of them would miss the TLB.
  const size_t alignment = bytes >= kLarge ? kLargePage : kLine;
  bytes = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, bytes);
  if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  if (alignment == kLargePage) madvise(memory, bytes, MADV_HUGEPAGE);  // a wish: may fail
#endif
  return new (memory) Header{bytes};
}

}  // namespace

void* take(size_t bytes) {
  bytes += kLine;
  Kept& pool = kept();
  auto best = pool.blocks.end();
  for (auto it = pool.blocks.begin(); it != pool.blocks.end(); ++it) {
    const size_t size = it->bytes;
    if (size >= bytes && size / 2 <= bytes && (best == pool.blocks.end() || size < best->bytes)) {
      best = it;
    }
  }
  if (best == pool.blocks.end()) return memory_of(allocate(bytes));
  Header* block = best->header;
  pool.bytes -= best->bytes;
  pool.blocks.erase(best);
  return memory_of(block);
}

void give_back(void* memory) noexcept {
  Header* block = block_of(memory);
  Kept& pool = kept();
  if (block->bytes > kKept) return std::free(block);
  try {
    pool.blocks.push_back({block->bytes, block});
  } catch (const std::bad_alloc&) {
    return std::free(block);
  }
  pool.bytes += block->bytes;
  while (pool.bytes > kKept) {
    pool.bytes -= pool.blocks.front().bytes;
    std::free(pool.blocks.front().header);
    pool.blocks.erase(pool.blocks.begin());
  }
}

size_t kept_bytes() { return kept().bytes; }

}  // namespace hopmix::kernels::scratch
