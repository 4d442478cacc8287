// Checks of NumPy arrays: dtypes, shapes and memory. Only this file inspects them.
//
// Every function returns values that the core may use without further checks, or raises a TypeError
// for a wrong type, a ValueError for a wrong value; messages name the argument, the value found and
// the value expected. Dtypes are never converted: an index array is int64 or an error. Needs the
// GIL; constant time, except for copies of strided arrays.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/numbers.hpp"
#include "windeck/base/dtype.hpp"

namespace windeck {

/// A shape as Python writes it: "(3, 4)", "(3,)".
inline std::string shape_text(std::span<const py::ssize_t> shape) {
    std::string out = "(";
    for (std::size_t i = 0; i < shape.size(); ++i) {
        out += (i != 0 ? ", " : "") + std::to_string(shape[i]);
    }
    return out + (shape.size() == 1 ? ",)" : ")");
}

inline std::span<const py::ssize_t> shape_of(const py::array& array) {
    return {array.shape(), static_cast<std::size_t>(array.ndim())};
}

/// Whether a NumPy dtype has this kind ('i', 'u', 'f', 'b'), this size in bytes, and native byte
/// order.
inline bool is_native(const py::dtype& dtype, char kind, py::ssize_t size) {
    const char order = dtype.byteorder();
    return dtype.kind() == kind && dtype.itemsize() == size && (order == '=' || order == '|');
}

/// Whether a NumPy dtype is this one, in native byte order; false for a type that NumPy lacks.
inline bool is_native(const py::dtype& found, DType dtype) {
    return info(dtype).in_numpy && is_native(found, info(dtype).kind, size_of(dtype));
}

/// The data type of a NumPy dtype in native byte order; none where the core lacks it.
inline std::optional<DType> dtype_of(const py::dtype& dtype) {
    for (std::size_t i = 0; i < dtype_count; ++i) {
        const auto candidate = static_cast<DType>(i);
        if (is_native(dtype, candidate)) return candidate;
    }
    return std::nullopt;
}

/// The data type of a name such as "float32" or "bfloat16"; none for any other name.
inline std::optional<DType> dtype_named(std::string_view name) {
    for (std::size_t i = 0; i < dtype_count; ++i) {
        if (dtypes[i].name == name) return static_cast<DType>(i);
    }
    return std::nullopt;
}

/// The NumPy dtype of the arrays that hold a data type.
inline py::dtype numpy_dtype(DType dtype) {
    return py::dtype(name(storage_of(dtype)));
}

inline bool is_aligned(const py::array& array) {
    return (array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) != 0;
}

using IndexArray = py::array_t<std::int64_t>;

/// A one-dimensional int64 index array; `owner` keeps the values alive.
struct Indices {
    py::array owner;
    std::span<const std::int64_t> values;
};

/// `value` as indices: an int64 array of one dimension (copied only when strided or unaligned), or
/// a sequence of Python integers. Any other dtype, floats and int32 included, is a TypeError.
inline Indices index_array(py::handle value, const std::string& name) {
    py::array array;
    if (py::isinstance<py::array>(value)) {
        array = py::reinterpret_borrow<py::array>(value);
    } else {
        if (PyIndex_Check(value.ptr()) != 0 || !py::isinstance<py::sequence>(value) ||
            py::isinstance<py::str>(value) || py::isinstance<py::bytes>(value)) {
            throw py::type_error(name + " is of type " + type_name(value) +
                                 ", expected an int64 array of one dimension");
        }
        array = py::array::ensure(value);
        if (!array) {
            throw py::type_error(name +
                                 " is not a flat sequence of integers, expected an int64 "
                                 "array of one dimension");
        }
        if (array.size() == 0 && array.ndim() == 1) array = py::array_t<std::int64_t>(0);
    }
    if (!is_native(array.dtype(), DType::int64)) {
        throw py::type_error(name + " has dtype " + text(array.dtype()) + ", expected int64");
    }
    if (array.ndim() != 1) {
        throw py::value_error(name + " has shape " + shape_text(shape_of(array)) +
                              ", expected one dimension");
    }
    const bool contiguous = array.size() < 2 || array.strides(0) == array.itemsize();
    if (!contiguous || !is_aligned(array)) {
        array = py::array_t<std::int64_t, py::array::c_style>(
            py::reinterpret_steal<py::object>(PyObject_CallMethod(array.ptr(), "copy", nullptr)));
    }
    const auto* const data = static_cast<const std::int64_t*>(array.data());
    return {array, {data, static_cast<std::size_t>(array.size())}};
}

/// A contiguous one-dimensional uint8 array, such as a bitmap; `owner` keeps the values alive.
struct Bytes {
    py::array owner;
    std::span<const std::uint8_t> values;
};

inline Bytes byte_array(py::handle value, const std::string& name) {
    if (!py::isinstance<py::array>(value)) {
        throw py::type_error(name + " is of type " + type_name(value) +
                             ", expected a uint8 array of one dimension");
    }
    auto array = py::reinterpret_borrow<py::array>(value);
    if (!is_native(array.dtype(), DType::uint8)) {
        throw py::type_error(name + " has dtype " + text(array.dtype()) + ", expected uint8");
    }
    if (array.ndim() != 1 || (array.size() > 1 && array.strides(0) != 1)) {
        throw py::value_error(name + " has shape " + shape_text(shape_of(array)) +
                              (array.ndim() == 1 ? " and is strided" : "") +
                              ", expected one contiguous dimension");
    }
    const auto* const data = static_cast<const std::uint8_t*>(array.data());
    const auto size = static_cast<std::size_t>(array.size());
    return {std::move(array), {data, size}};
}

/// `value` as an array of exactly this dtype and shape, with any strides.
inline py::array exact_array(py::handle value, const py::dtype& dtype,
                             std::span<const py::ssize_t> shape, const std::string& name) {
    if (!py::isinstance<py::array>(value)) {
        throw py::type_error(name + " is of type " + type_name(value) +
                             ", expected an array of dtype " + text(dtype) + " and shape " +
                             shape_text(shape));
    }
    auto array = py::reinterpret_borrow<py::array>(value);
    if (!is_native(array.dtype(), dtype.kind(), dtype.itemsize())) {
        throw py::type_error(name + " has dtype " + text(array.dtype()) + ", expected " +
                             text(dtype));
    }
    if (!std::ranges::equal(shape_of(array), shape)) {
        throw py::value_error(name + " has shape " + shape_text(shape_of(array)) + ", expected " +
                              shape_text(shape));
    }
    return array;
}

/// `value` as an array of exactly this dtype and shape to read from, C-contiguous and aligned;
/// copied if it is strided, such as a gradient that was broadcast.
inline py::array in_array(py::handle value, const py::dtype& dtype,
                          std::span<const py::ssize_t> shape, const std::string& name) {
    auto array = exact_array(value, dtype, shape, name);
    if ((array.flags() & py::array::c_style) != 0 && is_aligned(array)) return array;
    auto copy =
        py::reinterpret_steal<py::object>(PyObject_CallMethod(array.ptr(), "copy", nullptr));
    if (!copy) throw py::error_already_set();
    return py::reinterpret_steal<py::array>(copy.release());
}

/// `value` as memory to write into: an array of exactly this dtype and shape, C-contiguous,
/// aligned and writeable. Never converted, never copied.
inline py::array out_array(py::handle value, const py::dtype& dtype,
                           std::span<const py::ssize_t> shape, const std::string& name) {
    auto array = exact_array(value, dtype, shape, name);
    if ((array.flags() & py::array::c_style) == 0) {
        throw py::value_error(name + " is not contiguous, expected a C-contiguous array");
    }
    if (!is_aligned(array)) {
        throw py::value_error(name + " is not aligned to its dtype, expected an aligned array");
    }
    if (!array.writeable()) {
        throw py::value_error(name + " is read-only, expected a writeable array");
    }
    return array;
}

/// `out` checked as by out_array, or a new array when it is None.
inline py::array out_or_new(py::handle out, const py::dtype& dtype,
                            std::span<const py::ssize_t> shape, const std::string& name) {
    if (!out.is_none()) return out_array(out, dtype, shape, name);
    return py::array(dtype, std::vector<py::ssize_t>(shape.begin(), shape.end()));
}

/// An int64 output of one dimension; new if `out` is None.
inline py::array int64_out(py::handle out, py::ssize_t size, const std::string& name) {
    return out_or_new(out, py::dtype::of<std::int64_t>(), std::span(&size, 1), name);
}

inline std::span<std::int64_t> int64_span(py::array& array) {
    return {static_cast<std::int64_t*>(array.mutable_data()),
            static_cast<std::size_t>(array.size())};
}

/// A new int64 array of one dimension with these values.
inline IndexArray int64_array(std::span<const std::int64_t> values) {
    IndexArray array(static_cast<py::ssize_t>(values.size()));
    std::ranges::copy(values, array.mutable_data());
    return array;
}

/// Whether all values are in [0, size). Without branches, so that loops are vectorised.
inline bool all_in_range(std::span<const std::int64_t> values, std::uint64_t size) {
    std::uint64_t sign = 0;
    for (const std::int64_t value : values) {
        const auto v = static_cast<std::uint64_t>(value);
        sign |= v | (size - 1 - v);
    }
    return static_cast<std::int64_t>(sign) >= 0;
}

[[noreturn]] inline void throw_first_out_of_range(const std::string& what,
                                                  std::span<const std::int64_t> values,
                                                  std::uint64_t size) {
    const auto bad = std::ranges::find_if(
        values, [size](std::int64_t v) { return static_cast<std::uint64_t>(v) >= size; });
    const std::string place = std::to_string(bad - values.begin());
    throw_out_of_range(
        what, bad == values.end() ? "" : std::to_string(*bad) + " at [" + place + "]", size);
}

/// The bytes of an array, from the first to the end of the last.
struct Extent {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    std::string name;
};

inline Extent extent(const py::array& array, std::string name) {
    auto begin = reinterpret_cast<std::uintptr_t>(array.data());
    auto end = begin;
    if (array.size() == 0) return {begin, begin, std::move(name)};
    for (py::ssize_t axis = 0; axis < array.ndim(); ++axis) {
        const py::ssize_t reach = (array.shape(axis) - 1) * array.strides(axis);
        (reach < 0 ? begin : end) += static_cast<std::uintptr_t>(reach);
    }
    return {begin, end + static_cast<std::uintptr_t>(array.itemsize()), std::move(name)};
}

/// Raises a ValueError if an output overlaps another output or an input. Inputs may overlap each
/// other. O(n log n) for n extents.
inline void require_disjoint(std::vector<Extent> outputs, const std::vector<Extent>& inputs) {
    const auto fail = [](const Extent& a, const Extent& b) {
        throw py::value_error(a.name + " overlaps " + b.name + ", expected memory of its own");
    };
    std::erase_if(outputs, [](const Extent& e) { return e.begin == e.end; });
    std::ranges::sort(outputs, {}, &Extent::begin);
    for (std::size_t i = 1; i < outputs.size(); ++i) {
        if (outputs[i].begin < outputs[i - 1].end) fail(outputs[i], outputs[i - 1]);
    }
    for (const Extent& input : inputs) {
        if (input.begin == input.end) continue;
        const auto after = std::ranges::upper_bound(outputs, input.begin, {}, &Extent::end);
        if (after != outputs.end() && after->begin < input.end) fail(*after, input);
    }
}

}  // namespace windeck
