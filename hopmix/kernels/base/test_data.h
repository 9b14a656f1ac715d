// Random batches for the kernels' tests, and slices of them for the reference.
#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "hopmix/kernels/base/bfloat16.h"
#include "hopmix/kernels/base/reference.h"
#include "hopmix/kernels/base/sequences.h"
#include "hopmix/kernels/rows/rows.h"
#include "hopmix/pattern/pattern.h"
#include "hwy/aligned_allocator.h"
#include "hwy/highway.h"
#include "hwy/targets.h"

namespace hopmix::kernels::testing {

using reference::Matrix;

/// The sizes of one test.
struct Case {
  std::string pattern;
  int64_t time, key_width, value_width;
  int64_t batch = 1, heads = 1, kv_heads = 1;
  std::vector<int64_t> bounds = {};  // packed sequences, if any

  Sequences sequences() const {
    return bounds.empty() ? Sequences::batched(batch, time) : Sequences::packed(bounds);
  }
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.pattern << " T" << c.time << " DK" << c.key_width << " DV" << c.value_width
             << " B" << c.batch << " H" << c.heads << " G" << c.kv_heads
             << (c.bounds.empty() ? "" : " packed");
}

/// Odd sizes, then patterns of every kind, grouped heads, batches and packed sequences.
inline std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int64_t time : {1, 2, 63, 64, 65, 100, 1000}) {
    for (const int64_t width : {3, 20, 64, 100}) {
      all.push_back({"k^2+1", time, width, width + time % 2, 1, time < 1000 ? 2 : 1, 1});
    }
  }
  for (const char* spec : {"dense", "window(4)", "2^k", "cached(k^2+1)", "random(3,1)",
                           "global(3)|window(2)", "offsets(7,11)", "blocks(16)", "fenwick"}) {
    all.push_back({spec, 100, 20, 12, 2, 4, 2});
  }
  all.push_back({"2^k", 70, 5, 7, 1, 6, 2, {0, 0, 1, 34, 34, 69, 70, 70}});
  all.push_back({"dense", 65, 3, 3, 1, 3, 3, {0, 65}});
  all.push_back({"k^2+1", 0, 3, 3, 2, 2, 1});
  all.push_back({"k^2+1", 5, 3, 3, 0, 2, 1});
  all.push_back({"k^2+1", 0, 3, 3, 1, 2, 1, {0, 0, 0}});
  return all;
}

/// Long enough for slots to be reused (Slots::compact) when rows are made on the fly.
inline std::vector<Case> compact_cases() {
  std::vector<Case> all;
  for (const char* spec : {"cached(k^2+1)", "cached(2^k)", "window(5)", "global(3)|window(2)",
                           "blocks(16)", "fenwick", "cached(fib)|global(2)"}) {
    all.push_back({spec, 700, 5, 20, 1, 2, 1});
  }
  all.push_back({"cached(2^k)", 900, 16, 16, 1, 1, 1, {0, 1, 401, 401, 900}});
  all.push_back({"window(1)", 1000, 3, 64});
  return all;
}

/// Values in [low, high) rounded to T.
template <typename T>
std::vector<T> random_values(int64_t count, int seed, double low = -1, double high = 1) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<T> out(count);
  for (T& x : out) x = static_cast<T>(uniform(generator));
  return out;
}

/// Output memory for a kernel, filled with NaN so that a forgotten entry shows.
template <typename T>
std::vector<T> unwritten(int64_t count) {
  return std::vector<T>(count, static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
}

/// A copy of x at the start of a cache line, or `behind` entries after one.
template <typename T>
class Placed {
 public:
  explicit Placed(const std::vector<T>& x, int64_t behind = 0)
      : memory_(hwy::AllocateAligned<T>(x.size() + behind)), data_(memory_.get() + behind) {
    std::copy(x.begin(), x.end(), data_);
  }
  const T* data() const { return data_; }

 private:
  hwy::AlignedFreeUniquePtr<T[]> memory_;
  T* data_;
};

template <typename T>
std::vector<double> widened(const std::vector<T>& x) {
  std::vector<double> out(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    out[i] = static_cast<double>(static_cast<Accumulator<T>>(x[i]));
  return out;
}

/// Head `head` of sequence s out of x [B, T, heads, width].
inline Matrix slice(const std::vector<double>& x, const Sequences& all, const Sequence& s,
                    int64_t heads, int64_t head, int64_t width) {
  Matrix out(s.length, width);
  for (int64_t i = 0; i < s.length; ++i) {
    for (int64_t c = 0; c < width; ++c) {
      out(i, c) = x[(((s.batch * all.time + s.start + i) * heads) + head) * width + c];
    }
  }
  return out;
}

/// Adds a slice back.
inline void unslice(const Matrix& from, const Sequences& all, const Sequence& s, int64_t heads,
                    int64_t head, std::vector<double>& x) {
  for (int64_t i = 0; i < s.length; ++i) {
    for (int64_t c = 0; c < from.cols; ++c) {
      x[(((s.batch * all.time + s.start + i) * heads) + head) * from.cols + c] += from(i, c);
    }
  }
}

/// 1 where the pattern reads, among the first `length` tokens.
inline Matrix mask_of(const Csr& csr, int64_t length, bool include_self = false) {
  Matrix mask(length, length);
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t r = csr.row_ptr[i]; r < csr.row_ptr[i + 1]; ++r) mask(i, csr.cols[r]) = 1;
    if (include_self) mask(i, i) = 1;
  }
  return mask;
}

/// Retrieved positions for each token and list, [B, T, lists, width]: positions up to the token, or
/// below it if `strictly_earlier`, in any order, some of them twice, mixed with -1; every seventh
/// row has none.
inline std::vector<int32_t> random_lists(const Sequences& all, int64_t lists, int64_t width,
                                         bool strictly_earlier) {
  std::mt19937 generator(7);
  std::vector<int32_t> out(all.tokens() * lists * width, -1);
  for (const Sequence& s : all.list) {
    for (int64_t i = 0; i < s.length; ++i) {
      int32_t* row = out.data() + (all.first_token(s) + i) * lists * width;
      std::uniform_int_distribution<int64_t> position(-1, strictly_earlier ? i - 1 : i);
      for (int64_t r = 0; i % 7 != 6 && r < lists * width; ++r) {
        row[r] = static_cast<int32_t>(position(generator));
      }
    }
  }
  return out;
}

/// How often each row of `list` contains each token of the sequence.
inline Matrix counts_of(const std::vector<int32_t>& indices, const Sequences& all,
                        const Sequence& s, int64_t lists, int64_t list, int64_t width) {
  Matrix counts(s.length, s.length);
  for (int64_t i = 0; i < s.length; ++i) {
    for (int64_t r = 0; r < width; ++r) {
      const int32_t j = indices[((all.first_token(s) + i) * lists + list) * width + r];
      if (j >= 0) counts(i, j) += 1;
    }
  }
  return counts;
}

/// Sizes for retrieval: heads with separate or shared lists, with or without shared keys; rows
/// shorter and longer than a vector; odd lengths and head widths; packed sequences.
struct ListCase {
  Case sizes;
  int64_t lists, width;
  ListCase(Case c, int64_t l, int64_t w) : sizes(std::move(c)), lists(l), width(w) {}
};

inline std::ostream& operator<<(std::ostream& out, const ListCase& c) {
  return out << c.sizes << " lists " << c.lists << " of " << c.width;
}

inline const char* const kNoPattern = "window(1)";  // any will do: it is not read

inline std::vector<ListCase> list_cases() {
  std::vector<ListCase> all;
  for (const int64_t time : {1, 2, 63, 64, 65, 100, 1000}) {
    for (const int64_t width : {3, 20, 64, 100}) {
      all.push_back({{kNoPattern, time, width, width + time % 2, 1, 2, 2}, 2, time % 8 + 1});
    }
  }
  all.push_back({{kNoPattern, 100, 20, 12, 2, 4, 2}, 4, 32});
  all.push_back({{kNoPattern, 100, 20, 12, 2, 4, 2}, 2, 33});
  all.push_back({{kNoPattern, 70, 64, 16, 1, 6, 1}, 1, 7});
  all.push_back({{kNoPattern, 70, 5, 7, 1, 6, 2, {0, 0, 1, 34, 34, 69, 70, 70}}, 2, 5});
  all.push_back({{kNoPattern, 70, 5, 7, 1, 6, 2, {0, 0, 1, 34, 34, 69, 70, 70}}, 6, 5});
  all.push_back({{kNoPattern, 5, 3, 3, 1, 2, 1}, 2, 0});
  all.push_back({{kNoPattern, 0, 3, 3, 2, 2, 1}, 2, 4});
  return all;
}

/// Enough work for threads and for teams: many heads; one head; two heads that alternate.
inline std::vector<ListCase> list_cases_for_threads() {
  return {{{kNoPattern, 100, 20, 12, 2, 6, 2}, 6, 9},
          {{kNoPattern, 1500, 40, 100, 1, 1, 1}, 1, 33},
          {{kNoPattern, 1100, 20, 64, 1, 2, 1}, 1, 8},
          {{kNoPattern, 1100, 64, 64, 1, 2, 1}, 2, 8}};
}

/// Entrywise tolerance: 16 roundings of the sums, relative to the largest value (errors mostly
/// cancel; this holds from one term to 1000 steps), plus half a unit in the last place of a rounded
/// output. NaN fails.
template <typename T>
void expect_close(const std::vector<T>& actual, const std::vector<double>& expected,
                  const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 1;
  for (const double x : expected) largest = std::max(largest, std::abs(x));
  const double sums = 16 * std::numeric_limits<Accumulator<T>>::epsilon() * largest;
  const double unit = kRoundsOutput<T> ? std::ldexp(1, -8) : 0;
  const std::vector<double> values = widened(actual);
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(values[i] - expected[i]);
    ASSERT_TRUE(error <= sums + unit * std::abs(expected[i]))
        << what << " entry " << i << ": " << values[i] << " instead of " << expected[i];
  }
}

template <typename T>
bool same_bits(const std::vector<T>& x, const std::vector<T>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
}

/// Calls run() with 1, 2 and 3 threads; its results (a vector of values) must be bit-identical.
template <typename Run>
void expect_same_for_any_threads(const Run& run) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const auto one = run();
  for (const int threads : {2, 3}) {
    omp_set_num_threads(threads);
    EXPECT_TRUE(same_bits(run(), one)) << threads << " threads";
  }
  omp_set_num_threads(before);
}

/// Limits execution to one thread during its lifetime: many calls on small problems would only wait
/// for each other.
struct OneThread {
  int before = omp_get_max_threads();
  OneThread() { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before); }
};

/// (loss(x + h) - loss(x - h)) / 2h for each entry of x, in double.
template <typename Loss>
std::vector<double> finite_differences(std::vector<double>& x, const Loss& loss) {
  const OneThread guard;
  const double h = 1e-5;
  std::vector<double> out;
  for (double& entry : x) {
    const double value = entry;
    entry = value + h;
    const double above = loss();
    entry = value - h;
    const double below = loss();
    entry = value;
    out.push_back((above - below) / (2 * h));
  }
  return out;
}

inline double inner_product(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

/// Finite differences with h = 1e-5 are accurate to about h^2 plus rounding / h.
inline void expect_gradient(const std::vector<double>& actual, const std::vector<double>& numeric,
                            const std::string& what) {
  ASSERT_EQ(actual.size(), numeric.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(std::abs(actual[i] - numeric[i]) <= 1e-8 * (1 + std::abs(numeric[i])))
        << what << " entry " << i << ": " << actual[i] << ", numerically " << numeric[i];
  }
}

/// Calls run() once with the loops of each instruction set available on this machine, including
/// scalar code.
template <typename Run>
void for_each_target(const Run& run) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    run();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

using StorageTypes = ::testing::Types<float, double, Bfloat16>;

}  // namespace hopmix::kernels::testing
