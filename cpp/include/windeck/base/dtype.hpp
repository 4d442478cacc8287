// The data types of columns, batches and tokens, and the one table of their properties.
//
// bfloat16 is the upper half of a float32 (8 bits of exponent, 7 of fraction). NumPy does not have
// it, so its values are passed as the uint16 of their bits.
//
// Kernels include this header, so it includes no header with functions of the standard library.

#pragma once

#include <cstddef>
#include <cstdint>

namespace windeck {

/// A data type. The code of a type is its row in `dtypes` and its index in the tables of kernels.
/// Floating types come first.
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

/// The properties of a data type.
struct DTypeInfo {
    const char* name;   // as NumPy writes it, or "bfloat16"
    char kind;          // NumPy's letter: f floating, i signed, u unsigned, b boolean
    int log2_size;      // the size is two to this power, in bytes
    char arrow_format;  // in the Arrow C data interface; 0 where Arrow does not have the type
    bool in_numpy;      // otherwise NumPy arrays hold the bits, as unsigned integers of this size
};

/// All data types, in the order of DType.
inline constexpr DTypeInfo dtypes[] = {
    {"float64", 'f', 3, 'g', true}, {"float32", 'f', 2, 'f', true}, {"float16", 'f', 1, 'e', true},
    {"bfloat16", 'f', 1, 0, false}, {"int8", 'i', 0, 'c', true},    {"int16", 'i', 1, 's', true},
    {"int32", 'i', 2, 'i', true},   {"int64", 'i', 3, 'l', true},   {"uint8", 'u', 0, 'C', true},
    {"uint16", 'u', 1, 'S', true},  {"uint32", 'u', 2, 'I', true},  {"uint64", 'u', 3, 'L', true},
    {"bool", 'b', 0, 'b', true},
};

/// The number of data types, of floating types, and of sizes (1, 2, 4 and 8 bytes).
inline constexpr std::size_t dtype_count = sizeof dtypes / sizeof *dtypes;
inline constexpr std::size_t float_count = 4;
inline constexpr std::size_t size_count = 4;

static_assert(dtype_count == static_cast<std::size_t>(DType::boolean) + 1);
static_assert(float_count == static_cast<std::size_t>(DType::int8));
static_assert(static_cast<int>(DType::uint64) == static_cast<int>(DType::uint8) + 3);

constexpr std::size_t code(DType dtype) {
    return static_cast<std::size_t>(dtype);
}

constexpr const DTypeInfo& info(DType dtype) {
    return dtypes[code(dtype)];
}

constexpr const char* name(DType dtype) {
    return info(dtype).name;
}

constexpr int log2_size(DType dtype) {
    return info(dtype).log2_size;
}

/// The size of a value in bytes.
constexpr std::int64_t size_of(DType dtype) {
    return std::int64_t{1} << log2_size(dtype);
}

/// The type whose NumPy arrays hold values of this type: itself, or the unsigned integer of its
/// size.
constexpr DType storage_of(DType dtype) {
    if (info(dtype).in_numpy) return dtype;
    return static_cast<DType>(code(DType::uint8) + static_cast<std::size_t>(log2_size(dtype)));
}

constexpr bool is_float(DType dtype) {
    return code(dtype) < float_count;
}

constexpr bool is_unsigned(DType dtype) {
    return info(dtype).kind == 'u';
}

/// Whether the type is a signed or unsigned integer; bool is not.
constexpr bool is_integer(DType dtype) {
    return info(dtype).kind == 'i' || is_unsigned(dtype);
}

}  // namespace windeck
