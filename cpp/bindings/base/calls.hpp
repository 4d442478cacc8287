// Sentences for calls with arguments that a function does not take: misspelt keywords, missing and
// surplus arguments.

#pragma once

#include <cstdlib>
#include <cstring>
#include <string>

#include "bindings.hpp"

namespace windeck {

[[noreturn]] inline void refuse_call(const std::string& call, const std::string& signatures,
                                     py::ssize_t count, const py::kwargs& options) {
    const auto options_module = py::module_::import("windeck._util.options");
    const py::object message =
        options_module.attr("explain_native_call")(call, signatures, count, options);
    throw py::type_error(message.cast<std::string>());
}

/// Adds to a method, or to a function of a module, an overload that takes all arguments and raises
/// a TypeError of one sentence. For functions whose other overloads convert no argument implicitly.
/// The docstring, which has the signatures, stays as it is.
inline void explain_calls(const py::object& owner, const char* name,
                          const std::string& owner_name) {
    const py::object bound = py::getattr(owner, name);
    PyObject* const function = PyInstanceMethod_Check(bound.ptr())
                                   ? PyInstanceMethod_GET_FUNCTION(bound.ptr())
                                   : bound.ptr();
    PyMethodDef* const definition = reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
    const std::string doc = definition->ml_doc;
    const bool is_constructor = std::strcmp(name, "__init__") == 0;
    const bool is_method = PyType_Check(owner.ptr()) && !is_constructor;
    const std::string call = is_method ? owner_name + "." + name : owner_name;
    py::cpp_function added;
    if (!PyType_Check(owner.ptr())) {
        added = py::cpp_function(
            [call, doc](const py::args& given, const py::kwargs& options) {
                refuse_call(call, doc, static_cast<py::ssize_t>(given.size()), options);
            },
            py::name(name), py::scope(owner), py::sibling(bound));
    } else if (is_constructor) {
        added = py::cpp_function(
            [call, doc](py::detail::value_and_holder&, const py::args& given,
                        const py::kwargs& options) {
                refuse_call(call, doc, static_cast<py::ssize_t>(given.size()), options);
            },
            py::name(name), py::is_method(owner), py::sibling(bound),
            py::detail::is_new_style_constructor());
    } else {
        added = py::cpp_function(
            [call, doc](const py::object&, const py::args& given, const py::kwargs& options) {
                refuse_call(call, doc, static_cast<py::ssize_t>(given.size()), options);
            },
            py::name(name), py::is_method(owner), py::sibling(bound));
    }
    std::free(const_cast<char*>(definition->ml_doc));  // pybind11 allocates it with malloc.
    definition->ml_doc = strdup(doc.c_str());
    py::setattr(owner, name, added);
}

}  // namespace windeck
