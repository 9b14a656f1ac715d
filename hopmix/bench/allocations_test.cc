#include "hopmix/bench/allocations.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace hopmix::bench {
namespace {

constexpr int64_t kMega = 1 << 20, kSlack = 1 << 14;  // allocator headers and small objects

struct alignas(64) Wide {
  char bytes[64];
};

// Opaque to the compiler, which could otherwise remove a pair of malloc and free.
void* volatile seen = nullptr;

class Peak : public testing::Test {
 protected:
  void SetUp() override {
    if (!peak_allocated([] {})) GTEST_SKIP() << "this build cannot count";
  }
};

void expect_peak(int64_t bytes, const std::function<void()>& body) {
  const int64_t most = peak_allocated(body).value();
  EXPECT_GE(most, bytes);
  EXPECT_LE(most, bytes + kSlack);
}

TEST_F(Peak, SeesEveryWayToAllocate) {
  expect_peak(0, [] {});
  expect_peak(3 * kMega, [] {
    seen = std::malloc(3 * kMega);
    std::free(seen);
  });
  expect_peak(3 * kMega, [] {
    seen = std::calloc(3, kMega);
    std::free(seen);
  });
  expect_peak(3 * kMega, [] {
    seen = std::aligned_alloc(4096, 3 * kMega);
    std::free(seen);
  });
  expect_peak(3 * kMega, [] { seen = std::vector<char>(3 * kMega).data(); });
  expect_peak(3 * kMega, [] { seen = std::vector<Wide>(3 * kMega / sizeof(Wide)).data(); });
  expect_peak(3 * kMega, [] { seen = at::empty({3 * kMega}, at::kChar).mutable_data_ptr(); });
}

TEST_F(Peak, IsTheMostAtOneMoment) {
  expect_peak(5 * kMega, [] {
    { seen = std::vector<char>(4 * kMega).data(); }
    const std::vector<char> two(2 * kMega), three(3 * kMega);
    seen = const_cast<char*>(two.data() + three.size() - two.size());
  });
}

TEST_F(Peak, FollowsWhatGrows) {
  // Usable sizes are whole pages here, so realloc may allocate more than requested.
  const int64_t most = peak_allocated([] {
                         seen = std::realloc(std::malloc(kMega), 6 * kMega);
                         seen = std::realloc(seen, 2 * kMega);
                         std::free(seen);
                       }).value();
  EXPECT_GE(most, 6 * kMega);
  EXPECT_LE(most, 7 * kMega + kSlack);
}

TEST_F(Peak, LeavesOutWhatWasThereBefore) {
  auto before = std::make_unique<std::vector<char>>(8 * kMega);
  expect_peak(0, [&] { before.reset(); });
  const at::Tensor input = at::ones({kMega});
  expect_peak(4 * kMega, [&] { seen = input.add(1).mutable_data_ptr(); });
}

TEST_F(Peak, CountsAllThreads) {
  expect_peak(2 * kMega, [] {
    std::vector<char> outer(kMega);
    seen = outer.data();
    std::thread([] { seen = std::vector<char>(kMega - 1024).data(); }).join();
    seen = std::vector<char>(kMega).data();
  });
}

}  // namespace
}  // namespace hopmix::bench
