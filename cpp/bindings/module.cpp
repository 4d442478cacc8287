#include <cstddef>
#include <string>

#include "base/calls.hpp"
#include "bindings.hpp"

namespace {

// Called at the first use of an object that was made by `__new__` without `__init__`. pybind11
// would allocate uninitialised memory for it.
void* refuse_unmade(std::size_t) {
    throw py::type_error(
        "the object was made by __new__ alone, expected its constructor to be called");
}

/// Pickles an object, with any protocol. Without it, protocols 0 and 1 of pickle call the base type
/// of all types of pybind11, which terminates the process.
py::tuple reduce(const py::object& self) {
    const py::object type = py::type::of(self);
    if (!py::hasattr(self, "__setstate__")) {
        throw py::type_error("cannot pickle '" + std::string(Py_TYPE(self.ptr())->tp_name) +
                             "' object");
    }
    return py::make_tuple(py::module_::import("copyreg").attr("__newobj__"), py::make_tuple(type),
                          self.attr("__getstate__")());
}

/// Sets `__new__` and `__reduce__` of every class of the module.
void finish_classes(const py::module_& m) {
    for (const auto& [name, value] : py::dict(m.attr("__dict__"))) {
        if (!PyType_Check(value.ptr())) continue;
        auto* type = py::detail::get_type_info(reinterpret_cast<PyTypeObject*>(value.ptr()));
        if (type == nullptr) continue;
        type->operator_new = refuse_unmade;
        const auto made = py::reinterpret_borrow<py::object>(value);
        py::setattr(made, "__reduce__",
                    py::cpp_function(&reduce, py::name("__reduce__"), py::is_method(made)));
    }
}

/// Gives the functions that are public sentences for wrong arguments.
void explain_public_calls(const py::module_& m) {
    for (const char* name : {"__init__", "index", "slice", "take"})
        windeck::explain_calls(m.attr("Permutation"), name, "Permutation");
    for (const char* name : {"__init__", "draw", "jump"})
        windeck::explain_calls(m.attr("LCG"), name, "LCG");
    windeck::explain_calls(m, "empty_rows", "empty_rows");
}

}  // namespace

PYBIND11_MODULE(_core, m, py::mod_gil_not_used()) {
    m.doc() = "The native core of windeck: orders, windows, gather, packing, tables, checksums.";
    windeck::bind_crc32c(m);
    windeck::bind_cumulative(m);
    windeck::bind_dispatch(m);
    windeck::bind_lcg(m);
    windeck::bind_orders(m);
    windeck::bind_packing(m);
    windeck::bind_permutation(m);
    windeck::bind_gather(m);
    windeck::bind_pool(m);
    windeck::bind_share_tree(m);
    windeck::bind_table(m);
    windeck::bind_tokens(m);
    windeck::bind_windows(m);
    finish_classes(m);
    explain_public_calls(m);
}
