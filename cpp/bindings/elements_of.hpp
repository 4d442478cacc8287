// What Search and Statistics are told about a buffer: its dtype, and where its elements stand.

#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "arrays.hpp"
#include "windeck/elements.hpp"

namespace windeck {

/// The element type of a name; a ValueError lists those there are.
inline Element element_of(const std::string& dtype) {
    if (const auto found = element_named(dtype)) return *found;
    std::string known;
    for (const auto one : element_names) {
        if (!known.empty()) known += ", ";
        known += one;
    }
    throw py::value_error("dtype is '" + dtype + "', expected one of " + known);
}

/// A ValueError unless the bytes are whole elements whose positions from `base` on are int64.
inline void check_elements(std::span<const std::byte> bytes, Element element, std::int64_t base) {
    const std::size_t size = size_of(element);
    if (bytes.size() % size != 0) {
        throw py::value_error("the buffer has " + std::to_string(bytes.size()) +
                              " bytes, expected a multiple of " + std::to_string(size) + " for " +
                              std::string(name(element)));
    }
    const auto count = static_cast<std::int64_t>(bytes.size() / size);
    if (base > std::numeric_limits<std::int64_t>::max() - count) {
        throw py::value_error("base is " + std::to_string(base) + " for " + std::to_string(count) +
                              " elements, expected positions below 2^63");
    }
}

}  // namespace windeck
