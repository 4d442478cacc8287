// The functions that add the bindings to the module, one for each header of the core.

#pragma once

#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace windeck {

void bind_crc32c(py::module_& m);
void bind_cumulative(py::module_& m);
void bind_dispatch(py::module_& m);
void bind_lcg(py::module_& m);
void bind_orders(py::module_& m);
void bind_packing(py::module_& m);
void bind_permutation(py::module_& m);
void bind_gather(py::module_& m);
void bind_pool(py::module_& m);
void bind_share_tree(py::module_& m);
void bind_table(py::module_& m);
void bind_tokens(py::module_& m);
void bind_windows(py::module_& m);

}  // namespace windeck
