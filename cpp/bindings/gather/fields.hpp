// The Python objects of columns and fields: descriptions for the core, and references that keep
// their memory alive.

#pragma once

#include <pybind11/pybind11.h>

#include "windeck/gather/gather.hpp"

namespace py = pybind11;

namespace windeck {

/// A column and the arrays that it reads.
struct PyColumn {
    Column column;
    py::object values;
    py::object validity;
};

/// A field and its columns.
struct PyField {
    FieldSpec spec;
    py::object columns;
};

void bind_fields(py::module_& m);

}  // namespace windeck
