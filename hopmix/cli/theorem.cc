#include "hopmix/cli/theorem.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "hopmix/base/status_line.h"
#include "hopmix/base/text_table.h"
#include "hopmix/nn/constructed_block.h"

namespace hopmix::cli {
namespace {

struct Row {
  int64_t n;
  int64_t least_m, most_m;
  bool exhaustive;  // try every choice of functions
  int64_t draws;    // else this many random ones
};

struct Form {
  bool cumulative, two_digits;
  torch::ScalarType dtype;
};

std::vector<Row> rows(int64_t draws) {
  return {{2, 1, 3, true, 0},        {3, 1, 2, true, 0},         {10, 1, 6, false, draws},
          {100, 1, 6, false, draws}, {1000, 1, 6, false, draws}, {4000, 1, 1, false, 1},
          {8000, 1, 1, false, 1}};
}

std::vector<Form> forms() {
  std::vector<Form> all;
  for (const bool two_digits : {false, true}) {
    for (const auto dtype : {torch::kFloat32, torch::kFloat64}) {
      for (const bool cumulative : {true, false}) all.push_back({cumulative, two_digits, dtype});
    }
  }
  return all;
}

std::string title(const Form& form) {
  return std::string(form.two_digits ? "2" : "1") +
         (form.dtype == torch::kFloat32 ? " f32" : " f64") + (form.cumulative ? " cum" : " exact");
}

// [B,m,n]: all n^(m n) choices, or random ones.
torch::Tensor functions_of(const Row& row, int64_t m) {
  if (!row.exhaustive) {
    torch::manual_seed(static_cast<uint64_t>(m * 100000 + row.n));
    return torch::randint(0, row.n, {row.draws, m, row.n}, torch::kInt64);
  }
  const auto count = static_cast<int64_t>(
      std::llround(std::pow(static_cast<double>(row.n), static_cast<double>(m * row.n))));
  return torch::arange(count)
      .unsqueeze(1)
      .floor_divide(torch::pow(row.n, torch::arange(m * row.n)))
      .remainder(row.n)
      .view({count, m, row.n});
}

struct Count {
  int64_t asked = 0, right = 0;
};

Count ask(const Row& row, int64_t m, const Form& form) {
  nn::ConstructedBlock block({.functions = m,
                              .n = row.n,
                              .cumulative = form.cumulative,
                              .two_digits = form.two_digits,
                              .dtype = form.dtype});
  const torch::Tensor functions = functions_of(row, m);
  const torch::Tensor x = torch::arange(row.n).expand({functions.size(0), row.n});
  Count count{.asked = x.numel()};
  // One draw at a time, so that memory stays that of one sequence.
  const int64_t piece = row.exhaustive ? functions.size(0) : 1;
  for (int64_t b = 0; b < functions.size(0); b += piece) {
    const torch::Tensor some = functions.slice(0, b, b + piece), of = x.slice(0, b, b + piece);
    count.right += block.answers(some, of).eq(nn::compositions(some, of)).sum().item<int64_t>();
  }
  return count;
}

}  // namespace

void reproduce_theorem(int64_t draws, bool json) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> cells;
  {
    StatusLine status(json);
    for (const Row& row : rows(draws)) {
      for (int64_t m = row.least_m; m <= row.most_m; ++m) {
        cells.push_back({std::to_string(m), std::to_string(row.n)});
        for (const Form& form : forms()) {
          status.show(
              "m " + std::to_string(m) + ", n " + std::to_string(row.n) + ", " + title(form),
              false);
          const Count count = ask(row, m, form);
          if (cells.back().size() == 2) {
            cells.back().push_back(std::to_string(count.asked) + (row.exhaustive ? " (all)" : ""));
          }
          const double percent =
              100.0 * static_cast<double>(count.right) / static_cast<double>(count.asked);
          cells.back().push_back(count.right == count.asked ? "100" : fixed(percent, 2));
          list.push_back({{"m", m},
                          {"n", row.n},
                          {"exhaustive", row.exhaustive},
                          {"set", form.cumulative ? "cumulative" : "exact"},
                          {"circles", form.two_digits ? 2 : 1},
                          {"dtype", form.dtype == torch::kFloat32 ? "float32" : "float64"},
                          {"asked", count.asked},
                          {"right", count.right}});
        }
      }
    }
  }  // clears the status line before the table
  if (json) {
    std::printf("%s\n", list.dump(2).c_str());
    return;
  }
  std::vector<std::string> head = {"m", "n", "questions"};
  for (const Form& form : forms()) head.push_back(title(form));
  std::printf(
      "m functions on [n] composed by one full-attention and one (1,...,1) MURA layer, weights as\n"
      "constructed (Theorem 3.3). Answers right, in percent; 100 means every one. Columns: "
      "circles\n"
      "that a value is written on, float32 or float64, cumulative or exact neighborhoods.\n\n%s\n"
      "One circle: the nearest scores differ by about 2 pi^2 / n^2, and float32 tells them apart "
      "up\n"
      "to some thousands. Two circles, a digit each: by 2 pi^2 / n.\n",
      text_table(head, cells, std::vector<bool>(head.size(), false)).c_str());
}

}  // namespace hopmix::cli
