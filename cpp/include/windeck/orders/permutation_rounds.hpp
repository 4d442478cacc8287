// The constants of the rounds of a permutation; the computation is defined in permutation.hpp.
//
// A header of its own, since kernels include it: no functions of the standard library.

#pragma once

#include <cstdint>

namespace windeck {

/// The rounds in one direction: x + pre; xorshift; R times (a_r * x + c_r; xorshift); x + post.
/// Both directions have this form, so one kernel serves both.
struct Rounds {
    static constexpr unsigned count = 6;

    std::uint64_t size = 0;
    unsigned bits = 0;       // k
    unsigned shift = 0;      // h
    std::uint64_t mask = 0;  // 2^k - 1
    std::uint64_t pre = 0;
    std::uint64_t post = 0;
    std::uint64_t a[count] = {};
    std::uint64_t c[count] = {};
};

}  // namespace windeck
