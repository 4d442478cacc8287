// Columns and fields as Python holds them: the core's descriptions, with what keeps their memory
// alive.

#pragma once

#include <pybind11/pybind11.h>

#include "windeck/gather/gather.hpp"

namespace py = pybind11;

namespace windeck {

/// A column and the arrays it looks into.
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
