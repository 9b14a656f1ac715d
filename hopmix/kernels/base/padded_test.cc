#include "hopmix/kernels/base/padded.h"

#include "hopmix/kernels/base/parallel.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "hopmix/kernels/rows/glr.h"
#include "hopmix/kernels/rows/glr_attention.h"
#include "hopmix/kernels/rows/glr_softmax.h"
#include "hopmix/kernels/rows/sparse_attention.h"

namespace hopmix::kernels {
namespace {

TEST(Scratch, WhatIsGivenBackIsTakenAgain) {
  std::thread([] {  // keeps nothing yet
    void* first = scratch::take(100000);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
    EXPECT_EQ(scratch::kept_bytes(), 0u);
    scratch::give_back(first);
    EXPECT_GE(scratch::kept_bytes(), 100000u);
    void* second = scratch::take(100000);
    EXPECT_EQ(second, first);
    EXPECT_EQ(scratch::kept_bytes(), 0u);
    scratch::give_back(second);
  })
      .join();
}

TEST(Scratch, KeepsNoMoreThanItSays) {
  constexpr size_t kMost = size_t{64} << 20;
  for (int n = 0; n < 3; ++n) {
    std::vector<Buffer<float>> all;
    for (int64_t count = 1; count < (int64_t{1} << 24); count *= 2) all.emplace_back(count);
    all.clear();
    EXPECT_LE(scratch::kept_bytes(), kMost);
  }
  scratch::give_back(scratch::take(2 * kMost));
  EXPECT_LE(scratch::kept_bytes(), kMost);
}

// A team's members take memory of their own. Were it given back by one of them, what that thread
// keeps would grow with every call.
TEST(Scratch, CallsOfATeamLeaveAsMuchAsTheyFound) {
  constexpr int64_t kTime = 3500, kWidth = 64;
  const int before = omp_get_max_threads();
  omp_set_num_threads(4);                           // halves of two
  const Csr csr = to_csr(Pattern("k^2+1", kTime));  // reads enough for a team of glr
  const Rows rows(csr);
  const Sequences sequences = Sequences::batched(1, kTime);
  const ReadLayout reads(rows, sequences);
  static_assert(kTime * kWidth >= kWorthTeam);
  const std::vector<float> x(kTime * kWidth, 0.1f), one(kTime, 0.1f), each(reads.nnz, 0.1f);
  std::vector<float> y(x), dq(x), dk(x), dv(x), da(one), db(one), dc(one), d_each(each);
  const float *px = x.data(), *p1 = one.data();
  const auto expect_no_growth = [](const char* name, const auto& call) {
    for (int n = 0; n < 3; ++n) call();
    const size_t kept = scratch::kept_bytes();
    for (int n = 0; n < 20; ++n) call();
    EXPECT_LE(scratch::kept_bytes(), kept) << name;
  };
  expect_no_growth("glr", [&] {
    const GlrInputs<float> in{p1, each.data(), each.data(), px, 1, kWidth, sequences, rows, reads};
    glr(in, y.data());
    glr_backward(in, y.data(), px, {da.data(), d_each.data(), d_each.data(), dv.data()});
  });
  expect_no_growth("glr_attention", [&] {
    const GlrAttentionInputs<float> in{px, px,     px,     p1,  p1,        p1,  1,
                                       1,  kWidth, kWidth, 0.1, sequences, rows};
    glr_attention(in, y.data());
    glr_attention_backward(in, y.data(), px,
                           {dq.data(), dk.data(), dv.data(), da.data(), db.data(), dc.data()});
  });
  expect_no_growth("glr_softmax", [&] {
    const GlrSoftmaxInputs<float> in{px, px,     px,     p1,  p1,    p1,        1,
                                     1,  kWidth, kWidth, 0.1, false, sequences, rows};
    glr_softmax(in, y.data());
    glr_softmax_backward(in, y.data(), px,
                         {dq.data(), dk.data(), dv.data(), da.data(), db.data(), dc.data()});
  });
  expect_no_growth("sparse_attention", [&] {
    const SparseAttentionInputs<float> in{px,     px,  px,    1,         1,   kWidth,
                                          kWidth, 0.1, false, sequences, rows};
    sparse_attention(in, y.data());
    sparse_attention_backward(in, px, {dq.data(), dk.data(), dv.data()});
  });
  omp_set_num_threads(before);
}

}  // namespace
}  // namespace hopmix::kernels
