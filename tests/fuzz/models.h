// Random small models for the fuzz targets.
#pragma once

#include <torch/torch.h>

#include "hopmix/config/config.h"
#include "hopmix/nn/model.h"
#include "tests/fuzz/fuzz.h"

namespace hopmix::fuzz {

/// A `[model]` table of one to three blocks. Most are valid; a mixer refuses some keys.
inline std::string model_table(Input& input) {
  static const std::vector<std::string> mixers = {
      "mixer = 'attention'", "mixer = 'attention', kv_heads = 1", "mixer = 'local_attention', window = 3",
      "mixer = 'sparse_attention', pattern = 'strided(3) | window(2)'", "mixer = 'sparse_attention', pattern = 'cached(2^k)'",
      "mixer = 'glr', pattern = 'k^2+1'", "mixer = 'glr', pattern = 'cached(k^2+1)'", "mixer = 'glr', pattern = 'dense'",
      "mixer = 'glr', pattern = 'cached(2^k)', coefficients = 'independent'", "mixer = 'glr', pattern = 'window(4)'",
      "mixer = 'chacal'", "mixer = 'block_chacal', block = 5", "mixer = 'gated_linear_recurrence'",
      "mixer = 'gated_linear_recurrence', decay = 'head'", "mixer = 'deltanet'", "mixer = 'gated_deltanet'", "mixer = 'kda'",
      "mixer = 'linear_attention'", "mixer = 'gla'", "mixer = 'mamba'", "mixer = 'mamba2', head_width = 4, state = 5",
      "mixer = 'log_linear_attention'", "mixer = 'diagonal_ssm'",
  };  // fmt: skip
  std::string text = "width = " + std::to_string(8 * input.number(1, 3)) + "\nheads = " + std::to_string(input.number(1, 2));
  text += "\npositions = '" + std::string(input.one_of(std::vector<std::string>{"none", "learned", "rope"})) + "'\n";
  text += "mlp = " + std::to_string(input.number(0, 2)) + "\nblocks = [";
  const int64_t blocks = input.number(1, 3);
  for (int64_t n = 0; n < blocks; ++n) text += "{" + input.one_of(mixers) + "}, ";
  return text + "]\n";
}

/// The model of such a table; throws Error if it is invalid.
inline std::shared_ptr<nn::LanguageModel> make_model(const std::string& text, int64_t vocabulary, int64_t length) {
  torch::manual_seed(7);
  toml::table document = config::parse(text, "fuzz");
  config::Table table(document);
  nn::TaskShape shape;
  shape.vocabulary = vocabulary;
  shape.length = length;
  return nn::make_model(table, shape);
}

}  // namespace hopmix::fuzz
