// What tensors are made of: the dtypes of torch that are numbers, and what their bits mean.
//
// Bytes are little-endian, of any alignment. A small float is sign, exponent and fraction, as IEEE
// 754 has them, with three exceptions: e4m3fn has no infinity, and only the code of all ones is
// NaN; the fnuz types have no infinity and no -0, whose code is NaN instead; e8m0fnu is a power of
// two with neither sign nor zero. Each value of each type but 64-bit integers is a float64 exactly.
//
// Constant time, thread-safe.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace windeck {

enum class Element : std::uint8_t {
    float64,
    float32,
    float16,
    bfloat16,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    boolean,
    complex32,
    complex64,
    complex128,
};

/// As torch calls them.
inline constexpr std::array<std::string_view, 21> element_names = {
    "float64",     "float32",         "float16",
    "bfloat16",    "float8_e4m3fn",   "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "int8",        "int16",           "int32",
    "int64",       "uint8",           "uint16",
    "uint32",      "uint64",          "bool",
    "complex32",   "complex64",       "complex128"};

enum class ElementKind : std::uint8_t { real, whole, natural, complex };

constexpr std::string_view name(Element element) {
    return element_names[static_cast<std::size_t>(element)];
}

constexpr std::optional<Element> element_named(std::string_view wanted) {
    for (std::size_t i = 0; i < element_names.size(); ++i) {
        if (element_names[i] == wanted) return static_cast<Element>(i);
    }
    return std::nullopt;
}

constexpr std::size_t size_of(Element element) {
    constexpr std::size_t sizes[] = {8, 4, 2, 2, 1, 1, 1, 1, 1, 1, 2,
                                     4, 8, 1, 2, 4, 8, 1, 4, 8, 16};
    return sizes[static_cast<std::size_t>(element)];
}

/// Floats; integers with a sign; integers without, and bool; complex.
constexpr ElementKind kind_of(Element element) {
    if (element >= Element::complex32) return ElementKind::complex;
    if (element >= Element::uint8) return ElementKind::natural;
    if (element >= Element::int8) return ElementKind::whole;
    return ElementKind::real;
}

/// Of a complex type, what its two parts are.
constexpr Element part_of(Element element) {
    if (element == Element::complex32) return Element::float16;
    return element == Element::complex64 ? Element::float32 : Element::float64;
}

/// The value of the bits of a float of 8 to 32 bits; exact.
double small_float(Element element, std::uint32_t bits);

/// The values of `count` elements of a kind real, from bytes of any alignment.
void read_reals(Element element, const std::byte* data, std::size_t count, double* values);

/// small_float of each of the 2^16 codes of float16, made at the first call.
const std::array<float, 65536>& halves();

}  // namespace windeck
