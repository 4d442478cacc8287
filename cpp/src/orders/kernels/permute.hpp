// Bulk evaluation of the rounds of a permutation, as defined in permutation.hpp.
//
// permute_range writes the images of start, start + 1, ..., permute_take those of the given values.
// `in` and `out` do not overlap. Values outside of [0, size) have some image, in bounded time.

#pragma once

#include <cstddef>
#include <cstdint>

#include "windeck/orders/permutation_rounds.hpp"

namespace windeck {

using PermuteRange = void(const Rounds& rounds, std::uint64_t start, std::size_t count,
                          std::int64_t* out);
using PermuteTake = void(const Rounds& rounds, const std::int64_t* in, std::size_t count,
                         std::int64_t* out);

namespace baseline {
PermuteRange permute_range;
PermuteTake permute_take;
}  // namespace baseline
namespace avx2 {
PermuteRange permute_range;
PermuteTake permute_take;
}  // namespace avx2
namespace avx512 {
PermuteRange permute_range;
PermuteTake permute_take;
}  // namespace avx512

}  // namespace windeck
