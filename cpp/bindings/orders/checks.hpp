// Checks that all orders share, those written in C++ and those written in Python: sizes, ranges and
// outputs.

#pragma once

#include <cstdint>
#include <string>

#include "base/arrays.hpp"

namespace windeck {

/// The size of an order: a Python integer in [1, 2^63).
inline std::uint64_t order_size(py::handle value) {
    return static_cast<std::uint64_t>(integer(value, "size", 1));
}

/// Positions start to stop, stop excluded.
struct Range {
    std::uint64_t start;
    std::uint64_t stop;

    py::ssize_t length() const { return static_cast<py::ssize_t>(stop - start); }
};

/// A range with 0 <= start <= stop <= size; nothing is clipped.
inline Range strict_range(py::handle start, py::handle stop, std::uint64_t size) {
    const Range range{index_in(start, size + 1, "start"), index_in(stop, size + 1, "stop")};
    if (range.stop >= range.start) return range;
    throw py::value_error("stop is " + std::to_string(range.stop) + ", expected at least start, " +
                          std::to_string(range.start));
}

/// An output for as many values, not overlapping them; `name` is the name of the values.
inline IndexArray bulk_out(py::handle out, const Indices& indices, const std::string& name) {
    py::array result = int64_out(out, static_cast<py::ssize_t>(indices.values.size()), "out");
    require_disjoint({extent(result, "out")}, {extent(indices.owner, name)});
    return result;
}

}  // namespace windeck
