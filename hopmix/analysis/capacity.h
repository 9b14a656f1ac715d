// What a hybrid block can compose, by the bounds of "Improving the Expressive Power of Hybrid
// Sequence Models via Multi-Hop Retrieval" (called MURA): functions f_1, ..., f_m from [n] to [n]
// are listed in the context, and the block must give f_1(f_2(... f_m(x))) for a query x (equations
// 6 and 7).
//
// The bounds are asymptotic. Their constants are not given there and are 1 here: the figures order
// blocks and show exponents; they are not thresholds.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace hopmix {

/// The capacity of a block whose layers after the full attention retrieve its `kappa` best entries:
/// C = precision * width * (layers + kappa + 1) (theorem 2.7, equation 8); kappa = 0 is a
/// conventional hybrid. `precision` in bits a number, `width` the model's, `layers` after the
/// full-attention layer. Throws Error for a precision or width below 1, layers or kappa below 0.
double topk_capacity(int64_t precision, int64_t width, int64_t layers, int64_t kappa);

/// The capacity of a block of m-hop retrieval with widths kappa_1, ..., kappa_m: C = precision *
/// width * m * (kappa_1 * ... * kappa_m) (theorem 3.4, equation 14). Throws Error for anything
/// below 1, and for no widths.
double multihop_capacity(int64_t precision, int64_t width, const std::vector<int64_t>& widths);

/// The smallest capacity that the theorems allow a block of m hops (top-kappa blocks and
/// conventional ones have m = 1) that composes `functions` functions on [n]: n^(1 / (m + 1)) for
/// more functions than hops (theorem 2.7 for m = 1, theorem 3.4: longer compositions hold shorter
/// ones). None up to m functions: there constant width and log n bits do (theorem 3.3). Throws
/// Error for anything below 1.
std::optional<double> capacity_needed(double n, int64_t functions, int64_t hops);

/// The largest n that capacity_needed(n, functions, hops) <= capacity allows: capacity^(m + 1),
/// rounded down while a double holds it exactly; none when there is no bound.
std::optional<double> largest_domain(double capacity, int64_t functions, int64_t hops);

}  // namespace hopmix
