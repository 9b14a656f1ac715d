// What a hybrid block can compose, by the bounds of "Improving the Expressive Power of Hybrid
// Sequence Models via Multi-Hop Retrieval" (MURA). The context lists functions f_1, ..., f_m from
// [n] to [n], and the block must return f_1(f_2(... f_m(x))) for a query x (equations 6 and 7).
//
// The bounds are asymptotic. The paper does not give their constants, which are taken as 1 here:
// the figures rank blocks and show exponents, but are not thresholds.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace hopmix {

/// The capacity of a block whose layers after the full attention retrieve its `kappa` best entries:
/// C = precision * width * (layers + kappa + 1) (theorem 2.7, equation 8); kappa = 0 is a
/// conventional hybrid. `precision` is in bits per number, `width` is the model's, and `layers`
/// counts the layers after the full attention. Throws Error if precision or width is below 1, or
/// layers or kappa below 0.
double topk_capacity(int64_t precision, int64_t width, int64_t layers, int64_t kappa);

/// The capacity of a block of m-hop retrieval with widths kappa_1, ..., kappa_m: C = precision *
/// width * m * (kappa_1 * ... * kappa_m) (theorem 3.4, equation 14). Throws Error if a value is
/// below 1 or there are no widths.
double multihop_capacity(int64_t precision, int64_t width, const std::vector<int64_t>& widths);

/// The smallest capacity with which the theorems allow a block of m hops (m = 1 for top-kappa and
/// conventional blocks) to compose `functions` functions on [n]. With more functions than hops it
/// is n^(1 / (m + 1)) (theorem 2.7 for m = 1, theorem 3.4; longer compositions contain shorter
/// ones). Up to m functions there is no bound: constant width and log n bits suffice (theorem 3.3).
/// Throws Error if a value is below 1.
std::optional<double> capacity_needed(double n, int64_t functions, int64_t hops);

/// The largest n with capacity_needed(n, functions, hops) <= capacity: capacity^(m + 1), rounded
/// down as far as a double is exact; none if there is no bound.
std::optional<double> largest_domain(double capacity, int64_t functions, int64_t hops);

}  // namespace hopmix
