// Numbers of 64 bits without a sign, as seeds and epochs are.

#pragma once

#include <cstdint>

#include "base/arrays.hpp"

namespace windeck {

/// A Python integer (or anything with __index__) in [0, 2^64). A float is a TypeError, an integer
/// outside is a ValueError; both name the argument and what was found.
inline std::uint64_t word(py::handle value, const std::string& name) {
    if (PyIndex_Check(value.ptr()) == 0 || PyBool_Check(value.ptr())) {
        throw py::type_error(name + " is of type " + type_name(value) + ", expected an integer");
    }
    const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!number) throw py::error_already_set();
    const std::uint64_t found = PyLong_AsUnsignedLongLong(number.ptr());
    if (PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        throw py::value_error(name + " is " + text(number) +
                              ", expected an integer from 0 to 2^64 - 1");
    }
    return found;
}

/// Any argument, which signatures and stubs call SupportsIndex; word() and the like look at it.
struct Number {
    py::object value;
};

}  // namespace windeck

template <>
struct py::detail::type_caster<windeck::Number> {
    PYBIND11_TYPE_CASTER(windeck::Number, const_name("typing.SupportsIndex"));

    bool load(handle source, bool) {
        value.value = reinterpret_borrow<object>(source);
        return true;
    }
};
