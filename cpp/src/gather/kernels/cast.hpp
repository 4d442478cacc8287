// Casts of one value, written so that loops over them become vector code and give the same bits
// everywhere. Rounding is to nearest, ties to even.

#pragma once

#include <cstdint>

namespace windeck::WINDECK_ISA {

/// Bits of the two 16-bit floating types, and a bool of any bits but 0.
struct Float16 {
    std::uint16_t bits;
};
struct BFloat16 {
    std::uint16_t bits;
};
struct Bool {
    std::uint8_t bits;
};

inline std::uint32_t bits_of(float value) {
    return __builtin_bit_cast(std::uint32_t, value);
}
inline float float_of(std::uint32_t bits) {
    return __builtin_bit_cast(float, bits);
}

/// float64 to float32, inexact results towards zero with the last bit set: rounding that once more
/// to at most 22 bits is the same as rounding the float64 once.
inline float round_to_odd(double value) {
    const float nearest = static_cast<float>(value);
    const double back = static_cast<double>(nearest);
    const std::uint32_t bits = bits_of(nearest);
    const std::uint32_t away = __builtin_fabs(back) > __builtin_fabs(value) ? 1U : 0U;
    const std::uint32_t odd = (bits - away) | 1U;
    return float_of(back != value ? odd : bits);
}

inline Float16 to_float16(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t sign = bits >> 16 & 0x8000U;
    const std::uint32_t size = bits & 0x7fffffffU;
    const std::uint32_t normal = (size + 0xfffU + (size >> 13 & 1U) - (112U << 23)) >> 13;
    // Adding 1/2 leaves exactly the bits a subnormal has.
    const std::uint32_t subnormal = bits_of(float_of(size) + 0.5F) - 0x3f000000U;
    const std::uint32_t nan = 0x7e00U | (size >> 13 & 0x3ffU);
    std::uint32_t half = size < 0x38800000U ? subnormal : normal;
    half = size >= 0x47800000U ? 0x7c00U : half;
    half = size > 0x7f800000U ? nan : half;
    return {static_cast<std::uint16_t>(sign | half)};
}

inline BFloat16 to_bfloat16(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
    const std::uint32_t nan = bits >> 16 | 0x40U;
    return {static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded)};
}

inline float to_float(Float16 half) {
    const std::uint32_t size = static_cast<std::uint32_t>(half.bits & 0x7fffU) << 13;
    const std::uint32_t sign = static_cast<std::uint32_t>(half.bits & 0x8000U) << 16;
    const std::uint32_t normal = size + (112U << 23);
    const std::uint32_t special = size + (224U << 23);
    const std::uint32_t subnormal = bits_of(float_of(size + (113U << 23)) - float_of(113U << 23));
    std::uint32_t bits = size < (1U << 23) ? subnormal : normal;
    bits = size >= (31U << 23) ? special : bits;
    return float_of(bits | sign);
}

inline float to_float(BFloat16 brain) {
    return float_of(std::uint32_t{brain.bits} << 16);
}

// To float64.
template <typename T>
inline double widen_one(T value) {
    return static_cast<double>(value);
}
inline double widen_one(Float16 value) {
    return static_cast<double>(to_float(value));
}
inline double widen_one(BFloat16 value) {
    return static_cast<double>(to_float(value));
}
inline double widen_one(Bool value) {
    return value.bits != 0 ? 1.0 : 0.0;
}

// To 64-bit integers; the bits of a uint64.
template <typename T>
inline std::int64_t integer_of(T value) {
    return static_cast<std::int64_t>(value);
}
inline std::int64_t integer_of(Bool value) {
    return value.bits != 0 ? 1 : 0;
}

// To a floating type, from float64 and from float32.
template <typename Out>
struct Cast {
    template <typename In>
    static Out from(In value) {
        return static_cast<Out>(value);
    }
};
template <>
struct Cast<Float16> {
    static Float16 from(double value) { return to_float16(round_to_odd(value)); }
    static Float16 from(float value) { return to_float16(value); }
};
template <>
struct Cast<BFloat16> {
    static BFloat16 from(double value) { return to_bfloat16(round_to_odd(value)); }
    static BFloat16 from(float value) { return to_bfloat16(value); }
};

inline bool is_nan(double value) {
    return value != value;
}
inline bool is_nan(float value) {
    return value != value;
}
inline bool is_nan(Float16 value) {
    return (value.bits & 0x7fffU) > 0x7c00U;
}
inline bool is_nan(BFloat16 value) {
    return (value.bits & 0x7fffU) > 0x7f80U;
}

/// The magnitude of a 64-bit integer as a float64 whose last bit is odd if it is inexact.
inline double widen_to_odd(std::uint64_t size) {
    if (size >> 53 == 0) return static_cast<double>(size);
    const int excess = 11 - __builtin_clzll(size);
    const std::uint64_t rest = (std::uint64_t{1} << excess) - 1;
    const std::uint64_t odd = (size & ~rest) | std::uint64_t{(size & rest) != 0} << excess;
    return static_cast<double>(odd);
}

// The integers a type holds: [low, high], and 2^bits, the first float64 above.
template <typename T>
struct Range {
    static constexpr int bits = 8 * static_cast<int>(sizeof(T)) - (T(-1) < T(0) ? 1 : 0);
    static constexpr std::uint64_t high =
        bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << (bits & 63)) - 1;
    static constexpr std::int64_t low = T(-1) < T(0) ? -static_cast<std::int64_t>(high) - 1 : 0;
    static constexpr double above = 2.0 * static_cast<double>(std::uint64_t{1} << (bits - 1));
    static T make(std::uint64_t value) { return static_cast<T>(value); }
};
template <>
struct Range<Bool> {
    static constexpr std::uint64_t high = 1;
    static constexpr std::int64_t low = 0;
    static constexpr double above = 2.0;
    static Bool make(std::uint64_t value) { return {static_cast<std::uint8_t>(value)}; }
};

}  // namespace windeck::WINDECK_ISA
