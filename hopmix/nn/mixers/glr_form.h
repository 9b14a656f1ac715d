// The forms of a generalized linear recurrence's coefficients (GlrConfig::coefficients).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "hopmix/nn/pattern_cache.h"
#include "hopmix/nn/pattern_rows.h"

namespace hopmix::nn {

/// A form: what it projects and caches of a token, and how outputs follow from that.
struct GlrForm {
  /// Projections of tokens: vectors [B,T,H,D] first, then numbers [B,T,H], the gates.
  using Parts = std::vector<Tensor>;

  std::string name;
  std::vector<size_t> rotated;  // vectors that are rotated by position
  size_t vectors, gates;        // how many of each
  bool normalized;              // gates are logits instead of their sigmoids; outputs pass a norm

  /// What is cached of a token, by name: vectors [H,D], then numbers [H].
  std::vector<std::string> cached_vectors, cached_numbers;
  /// Those of whole sequences with outputs y [B,T,H,D], in that order.
  std::vector<Tensor> (*entries)(const Parts& parts, const Tensor& y);

  /// Outputs [B,T,H,D] of whole sequences.
  Tensor (*solve)(const Parts& parts, const Pattern& pattern, PatternRows& rows,
                  const Packing& packing);
  /// Outputs [B,H,D] of one token, with parts [B,1,...], which it also caches.
  Tensor (*step)(const Parts& parts, PatternCache& cache, State& state);
};

/// All forms.
const std::vector<GlrForm>& glr_forms();

/// The form called `name`. Throws Error if there is none.
const GlrForm& find_glr_form(const std::string& name);

}  // namespace hopmix::nn
