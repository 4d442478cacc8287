#include <bit>

#include "check.hpp"
#include "windeck/base/hash.hpp"

int main() {
    using namespace windeck;
    // SplitMix64 from seed 0 and seed 1234567, as published with it.
    static_assert(key(0, 0) == 0xe220a8397b1dcdaf);
    static_assert(key(0, 1) == 0x6e789e6aa1b965f4);
    static_assert(key(1234567, 0) == 6457827717110365317U);
    static_assert(key(1234567, 1) == 3203168211198807973U);

    check(absorb(absorb(0, 42), 1) != absorb(absorb(0, 43), 0), "hashed, not added");
    check(absorb(absorb(0, 1), 2) != absorb(absorb(0, 2), 1), "words have an order");
    check(absorb(0, 0) != 0, "zeros count");
    // One bit of a word changes about half of the bits.
    int changed = 0;
    for (int bit = 0; bit < 64; ++bit) {
        changed += std::popcount(absorb(7, 0) ^ absorb(7, std::uint64_t{1} << bit));
    }
    check(changed > 64 * 29 && changed < 64 * 35, "avalanche");
}
