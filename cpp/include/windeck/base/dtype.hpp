// The types of values: what columns hold and batches are made of. bfloat16 is the upper half of a
// float32 (8 bits of exponent, 7 of fraction); it travels as its 16 bits.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace windeck {

// Floating types first, integers after: the kernels' tables are in this order.
enum class DType : std::uint8_t {
    float64,
    float32,
    float16,
    bfloat16,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    boolean,
};

inline constexpr std::size_t dtype_count = 13;
inline constexpr std::size_t float_count = 4;

constexpr bool is_float(DType dtype) {
    return dtype <= DType::bfloat16;
}

/// Two to this power is the size in bytes.
constexpr int log2_size(DType dtype) {
    constexpr int sizes[dtype_count] = {3, 2, 1, 1, 0, 1, 2, 3, 0, 1, 2, 3, 0};
    return sizes[static_cast<std::size_t>(dtype)];
}

constexpr std::int64_t size_of(DType dtype) {
    return std::int64_t{1} << log2_size(dtype);
}

/// As NumPy calls it: "float64", "bool"; and "bfloat16".
constexpr std::string_view name(DType dtype) {
    constexpr std::string_view names[dtype_count] = {
        "float64", "float32", "float16", "bfloat16", "int8",   "int16", "int32",
        "int64",   "uint8",   "uint16",  "uint32",   "uint64", "bool"};
    return names[static_cast<std::size_t>(dtype)];
}

constexpr std::optional<DType> dtype_named(std::string_view wanted) {
    for (std::size_t i = 0; i < dtype_count; ++i) {
        if (name(static_cast<DType>(i)) == wanted) return static_cast<DType>(i);
    }
    return std::nullopt;
}

}  // namespace windeck
