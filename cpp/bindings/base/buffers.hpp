// The memory of Python objects with the buffer protocol.

#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "base/numbers.hpp"

namespace windeck {

/// The memory of a Python object, released by the destructor. The constructor and the destructor
/// need the GIL. A TypeError for an object without a buffer, a ValueError for a strided one.
class Buffer {
  public:
    explicit Buffer(py::handle object) {
        if (PyObject_CheckBuffer(object.ptr()) == 0) {
            throw py::type_error("buffer is of type " + type_name(object) +
                                 ", expected bytes or another buffer");
        }
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FULL_RO) != 0)
            throw py::error_already_set();
        if (PyBuffer_IsContiguous(&view_, 'C') == 0) {
            PyBuffer_Release(&view_);
            throw py::value_error("the buffer is strided, expected a contiguous one");
        }
    }
    Buffer(Buffer&& other) noexcept : view_(std::exchange(other.view_, {})) {}
    ~Buffer() { PyBuffer_Release(&view_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    [[nodiscard]] std::span<const std::byte> bytes() const {
        return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
    }

  private:
    Py_buffer view_{};
};

}  // namespace windeck
