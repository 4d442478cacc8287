// Codes: for each element an integer, ordered as the values are. -0 and 0 have one code; NaNs come
// after inf and before -inf.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "windeck/elements.hpp"

namespace windeck::codes {

/// The i-th of unaligned values.
template <typename Value>
Value load(const std::byte* data, std::size_t i) {
    Value value;
    std::memcpy(&value, data + i * sizeof(Value), sizeof(Value));
    return value;
}

/// Sign and magnitude as a two's complement number.
template <typename Code>
constexpr Code of_float(Code bits) {
    constexpr int sign = 8 * static_cast<int>(sizeof(Code)) - 1;
    using Bits = std::make_unsigned_t<Code>;
    const auto negative = static_cast<Code>(bits >> sign);  // 0 or -1
    const auto magnitude =
        static_cast<Bits>(static_cast<Bits>(bits) & (static_cast<Bits>(-1) >> 1));
    const auto flip = static_cast<Bits>(negative);
    return static_cast<Code>(static_cast<Bits>(static_cast<Bits>(magnitude ^ flip) - flip));
}

/// Without a sign: moved down by half the range.
template <typename Code>
constexpr Code of_natural(Code bits) {
    using Bits = std::make_unsigned_t<Code>;
    constexpr int sign = 8 * static_cast<int>(sizeof(Code)) - 1;
    return static_cast<Code>(
        static_cast<Bits>(static_cast<Bits>(bits) ^ static_cast<Bits>(Bits{1} << sign)));
}

}  // namespace windeck::codes
