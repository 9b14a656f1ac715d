// How fast the operators are beside what one would use instead: causal scaled_dot_product_attention
// for the same reach in one step, and the dense masked solve for the same function as the
// recurrence on `dense`. float32; forward, and forward with backward.
//
//   ops_bench                                  everything, in medians: a minute or two
//
//   ops_bench --benchmark_filter='^sdpa' --threads=2
//
//   ops_bench --benchmark_out=ops.json         every repetition
//
// With one thread (the default) time is that thread's CPU time, which other work on the machine
// hardly moves; with more it is wall time.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "hopmix/ops/ops.h"

namespace {

using at::Tensor;

struct Shape {
  std::string name;
  int64_t batch, heads, width, length;
};

// What a case computes: `forward` of `inputs`, every one of which gets a gradient.
struct Problem {
  std::vector<Tensor> inputs;
  std::function<Tensor(const std::vector<Tensor>&)> forward;
};

struct Case {
  std::string name;
  std::function<Problem(const Shape&)> make;
};

using Inputs = const std::vector<Tensor>&;

// q, k, v.
std::vector<Tensor> qkv(const Shape& s) {
  const std::vector<int64_t> size = {s.batch, s.length, s.heads, s.width};
  return {at::randn(size), at::randn(size), at::randn(size)};
}

// q, k, v, gate, d, d_self.
std::vector<Tensor> glr_inputs(const Shape& s) {
  std::vector<Tensor> inputs = qkv(s);
  for (int i = 0; i < 3; ++i) inputs.push_back(at::rand({s.batch, s.length, s.heads}));
  return inputs;
}

// The pattern as tensors, made once, as a layer keeps it.
hopmix::ops::PatternArg rows(const std::string& spec, const Shape& s) {
  const auto [row_ptr, cols] = hopmix::ops::pattern(spec, s.length);
  return {row_ptr, cols};
}

Case glr_attention(const std::string& spec) {
  return {"glr_attention " + spec, [spec](const Shape& s) {
            return Problem{glr_inputs(s), [pattern = rows(spec, s)](Inputs x) {
                             return hopmix::ops::glr_attention(x[0], x[1], x[2], x[3], x[4], x[5],
                                                               pattern);
                           }};
          }};
}

Case sparse_attention(const std::string& spec) {
  return {"sparse_attention " + spec, [spec](const Shape& s) {
            return Problem{qkv(s), [pattern = rows(spec, s)](Inputs x) {
                             return hopmix::ops::sparse_attention(x[0], x[1], x[2], pattern,
                                                                  /*include_self=*/true);
                           }};
          }};
}

Case glr(const std::string& spec) {
  return {
      "glr " + spec, [spec](const Shape& s) {
        const hopmix::ops::PatternArg pattern = rows(spec, s);
        const int64_t reads = pattern.cols.numel();
        // beta as in a trained layer: rows that sum to less than 1, so that y stays bounded.
        const double bound = static_cast<double>(s.length) / static_cast<double>(reads);
        return Problem{
            {at::rand({s.batch, s.heads, s.length}), at::rand({s.batch, s.heads, reads}) * bound,
             at::rand({s.batch, s.heads, reads}) * bound,
             at::randn({s.batch, s.length, s.heads, s.width})},
            [pattern](Inputs x) { return hopmix::ops::glr(x[0], x[1], x[2], x[3], pattern); }};
      }};
}

Case linear_recurrence() {
  return {"linear_recurrence", [](const Shape& s) {
            const std::vector<int64_t> size = {s.batch, s.length, s.heads * s.width};
            return Problem{{at::rand(size), at::randn(size)}, [](Inputs x) {
                             return std::get<0>(hopmix::ops::linear_recurrence(x[0], x[1]));
                           }};
          }};
}

constexpr const char* kAttention = "sdpa";
constexpr const char* kSolve = "dense_solve";

// The peers get [B, H, T, D], the layout that suits them.
std::vector<Tensor> heads_first(std::vector<Tensor> inputs) {
  for (Tensor& x : inputs) x = x.transpose(1, 2).contiguous();
  return inputs;
}

Case scaled_dot_product_attention() {
  return {kAttention, [](const Shape& s) {
            return Problem{heads_first(qkv(s)), [](Inputs x) {
                             return at::scaled_dot_product_attention(
                                 x[0], x[1], x[2], /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                 /*is_causal=*/true);
                           }};
          }};
}

// glr_attention on `dense` as a user of PyTorch would write it: z = (I - gate P)^{-1} (d + d_self)
// v.
Case dense_solve() {
  return {kSolve, [](const Shape& s) {
            const Tensor strict =
                at::ones({s.length, s.length}, at::kBool).tril(-1);  // made once, as a layer would
            // Row 0 is empty: without its exception its softmax would be NaN.
            Tensor hidden = strict.logical_not();
            hidden[0].fill_(false);
            return Problem{
                heads_first(glr_inputs(s)), [strict, hidden](Inputs x) {
                  const Tensor &q = x[0], &k = x[1], &v = x[2];
                  const Tensor gate = x[3].unsqueeze(-1), d = x[4].unsqueeze(-1),
                               d_self = x[5].unsqueeze(-1);
                  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
                  const Tensor logits =
                      at::matmul(q * scale, k.transpose(-1, -2))
                          .masked_fill(hidden, -std::numeric_limits<double>::infinity());
                  const Tensor matrix = at::softmax(logits, -1).mul(gate).neg();  // diagonal: of 1
                  const Tensor z = at::linalg_solve_triangular(matrix, (d + d_self) * v,
                                                               /*upper=*/false, /*left=*/true,
                                                               /*unitriangular=*/true);
                  return z - d * v;
                }};
          }};
}

const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      glr_attention("2^k"),   glr_attention("k^2+1"),         glr_attention("cached(k^2+1)"),
      glr_attention("dense"), sparse_attention("k^2+1"),      glr("k^2+1"),
      linear_recurrence(),    scaled_dot_product_attention(), dense_solve(),
  };
  return list;
}

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> list = {
      {"one head", 1, 1, 64, 256},
      {"one head", 1, 1, 64, 1024},
      {"one head", 1, 1, 64, 4096},
      {"training", 64, 4, 16, 64},
  };
  return list;
}

// ---- Measuring

void measure(benchmark::State& state, const Case& which, const Shape& shape, bool backward) {
  at::manual_seed(0);
  const Problem problem = which.make(shape);
  for (const Tensor& x : problem.inputs) x.requires_grad_(backward);
  const c10::AutoGradMode mode(backward);
  Tensor seed;  // the gradient that comes in
  for (auto _ : state) {
    const Tensor y = problem.forward(problem.inputs);
    if (backward) {
      if (!seed.defined()) seed = at::randn_like(y);
      benchmark::DoNotOptimize(torch::autograd::grad({y}, problem.inputs, {seed}));
    } else {
      benchmark::DoNotOptimize(y.data_ptr());
    }
  }
  const auto tokens = static_cast<double>(shape.batch * shape.length);
  state.counters["tokens/s"] =
      benchmark::Counter(tokens, benchmark::Counter::kIsIterationInvariantRate);
}

std::string group_name(const Shape& shape, bool backward) {
  return std::string(backward ? "forward and backward" : "forward") + ", " + shape.name + " (B " +
         std::to_string(shape.batch) + ", H " + std::to_string(shape.heads) + ", D " +
         std::to_string(shape.width) + "), T " + std::to_string(shape.length);
}

// The two ways to compute the dense recurrence must be one function, or their ratio means nothing.
bool peers_agree() {
  const Shape shape{"check", 2, 2, 16, 65};
  std::vector<Tensor> inputs = glr_inputs(shape);
  const Tensor ours = glr_attention("dense").make(shape).forward(inputs);
  const Tensor theirs = dense_solve().make(shape).forward(heads_first(inputs)).transpose(1, 2);
  return at::allclose(ours, theirs, /*rtol=*/1e-4, /*atol=*/1e-4);
}

// "3.14x", or "-" where there is no peer to compare with.
std::string ratio(double peer, double time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2fx", peer / time);
  return std::isnan(peer) ? "-" : text;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// Keeps the times, and at the end shows each median beside the peers at the same shape.
class Reporter : public benchmark::ConsoleReporter {
 public:
  explicit Reporter(bool wall) : wall_(wall) {}

  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration || run.error_occurred) continue;
      times_[run.run_name.function_name].push_back(wall_ ? run.GetAdjustedRealTime()
                                                         : run.GetAdjustedCPUTime());
    }
  }

  void print_ratios() const {
    for (const bool backward : {false, true}) {
      for (const Shape& shape : shapes()) print_group(shape, backward);
    }
  }

 private:
  // NaN where it was filtered out.
  double time_of(const std::string& which, const std::string& group) const {
    const auto found = times_.find(which + "/" + group);
    return found == times_.end() ? std::nan("") : median(found->second);
  }

  void print_group(const Shape& shape, bool backward) const {
    const std::string group = group_name(shape, backward);
    const double attention = time_of(kAttention, group), solve = time_of(kSolve, group);
    bool first = true;
    for (const Case& each : cases()) {
      const double time = time_of(each.name, group);
      if (std::isnan(time)) continue;
      if (first) {
        std::printf("\n%s\n  %-28s %13s %12s %12s %12s\n", group.c_str(), "", "median", "tokens/s",
                    "over sdpa", "over solve");
      }
      first = false;
      std::printf("  %-28s %10.3f ms %11.0fk %12s %12s\n", each.name.c_str(), time,
                  static_cast<double>(shape.batch * shape.length) / time,
                  ratio(attention, time).c_str(), ratio(solve, time).c_str());
    }
  }

  bool wall_;
  std::map<std::string, std::vector<double>> times_;  // ms, by benchmark
};

}  // namespace

int main(int argc, char** argv) {
  // Ahead of the user's own flags, which win. Interleaved, because a machine slows down and speeds
  // up.
  std::vector<std::string> words = {argv[0], "--benchmark_enable_random_interleaving=true",
                                    "--benchmark_repetitions=7", "--benchmark_min_time=0.02"};
  words.insert(words.end(), argv + 1, argv + argc);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());

  int threads = 1;
  if (count > 1 && std::sscanf(arguments[1], "--threads=%d", &threads) == 1) {
    arguments.erase(arguments.begin() + 1);
    --count;
  }
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;
  if (threads < 1) {
    std::fprintf(stderr, "ops_bench: --threads=%d: must be at least 1\n", threads);
    return 2;
  }
  at::set_num_threads(threads);
  if (!peers_agree()) {
    std::fprintf(stderr, "ops_bench: %s is not glr_attention on dense\n", kSolve);
    return 1;
  }

  for (const bool backward : {false, true}) {
    for (const Shape& shape : shapes()) {
      for (const Case& each : cases()) {
        const std::string name = each.name + "/" + group_name(shape, backward);
        auto* benchmark =
            benchmark::RegisterBenchmark(name.c_str(), measure, each, shape, backward);
        benchmark->Unit(benchmark::kMillisecond);
        if (threads > 1) benchmark->UseRealTime();
      }
    }
  }
  Reporter reporter(/*wall=*/threads > 1);
  benchmark::RunSpecifiedBenchmarks(&reporter);
  reporter.print_ratios();
}
