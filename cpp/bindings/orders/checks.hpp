// What every order checks, the native ones and those written in Python alike: sizes, positions,
// ranges and outputs. Messages name what was found and what was expected.

#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/arrays.hpp"
#include "base/numbers.hpp"

namespace windeck {

using IndexArray = py::array_t<std::int64_t>;

/// The size of an order: a Python integer in [1, 2^63).
inline std::uint64_t order_size(py::handle value) {
    return static_cast<std::uint64_t>(integer(value, "size", 1));
}

/// Whether all values lie in [0, size); without branches, so that it costs little beside the work.
inline bool all_inside(std::span<const std::int64_t> values, std::uint64_t size) {
    std::uint64_t sign = 0;
    for (const std::int64_t value : values) {
        const auto v = static_cast<std::uint64_t>(value);
        sign |= v | (size - 1 - v);
    }
    return static_cast<std::int64_t>(sign) >= 0;
}

[[noreturn]] inline void refuse_outside(const std::string& what, const std::string& found,
                                        std::uint64_t size) {
    throw py::index_error(what + " " + found + " is out of range, expected an integer in [0, " +
                          std::to_string(size) + ")");
}

[[noreturn]] inline void refuse_first_outside(const std::string& what,
                                              std::span<const std::int64_t> values,
                                              std::uint64_t size) {
    const auto bad = std::ranges::find_if(
        values, [size](std::int64_t v) { return static_cast<std::uint64_t>(v) >= size; });
    const std::string place = std::to_string(bad - values.begin());
    refuse_outside(what, bad == values.end() ? "" : std::to_string(*bad) + " at [" + place + "]",
                   size);
}

/// An integer in [0, size), else an IndexError; a TypeError when it is no integer. `offset` is
/// added to negative ones: the size, where they count from the end.
inline std::uint64_t inside(py::handle value, std::uint64_t size, const std::string& what,
                            std::uint64_t offset = 0) {
    if (PyIndex_Check(value.ptr()) == 0) {
        throw py::type_error(what + " is of type " + type_name(value) + ", expected an integer");
    }
    const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!number) throw py::error_already_set();
    int overflow = 0;
    std::int64_t found = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    if (found < 0) found += static_cast<std::int64_t>(offset);
    if (overflow != 0 || found < 0 || static_cast<std::uint64_t>(found) >= size) {
        refuse_outside(what, text(number), size);
    }
    return static_cast<std::uint64_t>(found);
}

/// Positions start to stop, stop excluded.
struct Range {
    std::uint64_t start;
    std::uint64_t stop;

    py::ssize_t length() const { return static_cast<py::ssize_t>(stop - start); }
};

/// A range with 0 <= start <= stop <= size; nothing is clipped.
inline Range strict_range(py::handle start, py::handle stop, std::uint64_t size) {
    const Range range{inside(start, size + 1, "start"), inside(stop, size + 1, "stop")};
    if (range.stop >= range.start) return range;
    throw py::value_error("stop is " + std::to_string(range.stop) + ", expected at least start, " +
                          std::to_string(range.start));
}

/// An output for as many values, apart from them; `name` is that of the values.
inline IndexArray bulk_out(py::handle out, const Indices& indices, const std::string& name) {
    py::array result = int64_out(out, static_cast<py::ssize_t>(indices.values.size()), "out");
    require_disjoint({extent(result, "out")}, {extent(indices.owner, name)});
    return result;
}

/// One integer, to tell order.index(3) from order.index(array) by type.
struct One {
    py::object value;
};

}  // namespace windeck

template <>
struct py::detail::type_caster<windeck::One> {
    PYBIND11_TYPE_CASTER(windeck::One, const_name("int"));

    bool load(handle source, bool) {
        if (PyIndex_Check(source.ptr()) == 0 || isinstance<array>(source)) return false;
        value.value = reinterpret_borrow<object>(source);
        return true;
    }
};
