// Numbers as Python passes them, checked and converted.
//
// Every function returns a C++ number or raises a TypeError for a wrong type, a ValueError or an
// IndexError for a number outside of its range; messages name the argument, the value found and
// the values expected. Needs the GIL; constant time.

#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "windeck/base/parallel.hpp"

namespace py = pybind11;

namespace windeck {

/// str(object), for messages.
inline std::string text(py::handle object) {
    return py::cast<std::string>(py::str(object));
}

/// The name of an object's type, for messages: "float", "ndarray".
inline std::string type_name(py::handle object) {
    return Py_TYPE(object.ptr())->tp_name;
}

/// value.__index__(), or a TypeError.
inline py::object index_value(py::handle value, const std::string& name) {
    if (PyIndex_Check(value.ptr()) == 0) {
        throw py::type_error(name + " is of type " + type_name(value) + ", expected an integer");
    }
    auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!number) throw py::error_already_set();
    return number;
}

/// The same, and a TypeError for a bool.
inline py::object integer_value(py::handle value, const std::string& name) {
    if (PyBool_Check(value.ptr())) {
        throw py::type_error(name + " is of type bool, expected an integer");
    }
    return index_value(value, name);
}

/// A Python integer (or anything with __index__) in [low, high]; a float is a TypeError.
inline std::int64_t integer(py::handle value, const std::string& name,
                            std::int64_t low = std::numeric_limits<std::int64_t>::min(),
                            std::int64_t high = std::numeric_limits<std::int64_t>::max()) {
    const py::object number = integer_value(value, name);
    int overflow = 0;
    const long long found = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    if (overflow != 0 || found < low || found > high) {
        throw py::value_error(name + " is " + text(number) + ", expected an integer from " +
                              std::to_string(low) + " to " + std::to_string(high));
    }
    return found;
}

/// A finite Python number in [low, high] (below `high` where `open`); a bool or string is a
/// TypeError.
inline double real(py::handle value, const std::string& name, double low, double high,
                   bool open = false) {
    const bool number = PyFloat_Check(value.ptr()) || PyIndex_Check(value.ptr()) ||
                        (Py_TYPE(value.ptr())->tp_as_number != nullptr &&
                         Py_TYPE(value.ptr())->tp_as_number->nb_float != nullptr);
    if (!number || PyBool_Check(value.ptr())) {
        throw py::type_error(name + " is of type " + type_name(value) + ", expected a number");
    }
    const double found = PyFloat_AsDouble(value.ptr());
    if (PyErr_Occurred() != nullptr) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError) == 0) throw py::error_already_set();
        PyErr_Clear();
    } else if (std::isfinite(found) && found >= low && (open ? found < high : found <= high)) {
        return found;
    }
    std::string expected = "a finite number";
    if (std::isfinite(low)) expected += " from " + text(py::float_(low));
    if (std::isfinite(high)) expected += (open ? " to below " : " to ") + text(py::float_(high));
    throw py::value_error(name + " is " + text(value) + ", expected " + expected);
}

/// A Python integer (or anything with __index__) in [0, 2^64), such as a seed or an epoch.
inline std::uint64_t uint64(py::handle value, const std::string& name) {
    const py::object number = integer_value(value, name);
    const std::uint64_t found = PyLong_AsUnsignedLongLong(number.ptr());
    if (PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        throw py::value_error(name + " is " + text(number) +
                              ", expected an integer from 0 to 2^64 - 1");
    }
    return found;
}

[[noreturn]] inline void throw_out_of_range(const std::string& what, const std::string& found,
                                            std::uint64_t size) {
    throw py::index_error(what + " " + found + " is out of range, expected an integer in [0, " +
                          std::to_string(size) + ")");
}

/// An integer in [0, size), else an IndexError. `offset` is added to negative ones: pass the size
/// for integers that count from the end.
inline std::uint64_t index_in(py::handle value, std::uint64_t size, const std::string& what,
                              std::uint64_t offset = 0) {
    const py::object number = index_value(value, what);
    int overflow = 0;
    std::int64_t found = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    if (found < 0) found += static_cast<std::int64_t>(offset);
    if (overflow != 0 || found < 0 || static_cast<std::uint64_t>(found) >= size) {
        throw_out_of_range(what, text(number), size);
    }
    return static_cast<std::uint64_t>(found);
}

/// A number of threads from 1 to 1,024; default_threads() for None.
inline int thread_count(py::handle threads) {
    if (threads.is_none()) return default_threads();
    return static_cast<int>(integer(threads, "threads", 1, 1024));
}

/// Any argument, shown as SupportsIndex in signatures and stubs; checked by the functions above.
struct IntegerLike {
    py::object value;
};

/// One integer, for overloads such as order.index(3) and order.index(array).
struct SingleIndex {
    py::object value;
};

}  // namespace windeck

template <>
struct py::detail::type_caster<windeck::IntegerLike> {
    PYBIND11_TYPE_CASTER(windeck::IntegerLike, const_name("typing.SupportsIndex"));

    bool load(handle source, bool) {
        value.value = reinterpret_borrow<object>(source);
        return true;
    }
};

template <>
struct py::detail::type_caster<windeck::SingleIndex> {
    PYBIND11_TYPE_CASTER(windeck::SingleIndex, const_name("int"));

    bool load(handle source, bool) {
        if (PyIndex_Check(source.ptr()) == 0 || isinstance<array>(source)) return false;
        value.value = reinterpret_borrow<object>(source);
        return true;
    }
};
