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
/// need the GIL. A TypeError for an object without a buffer, a ValueError for a strided one, and a
/// BufferError for one that is read-only if `writable`.
class Buffer {
  public:
    explicit Buffer(py::handle object, bool writable = false) {
        if (PyObject_CheckBuffer(object.ptr()) == 0) {
            throw py::type_error("buffer is of type " + type_name(object) +
                                 ", expected bytes or another buffer");
        }
        if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_FULL : PyBUF_FULL_RO) != 0)
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

    [[nodiscard]] std::span<const std::byte> bytes() const { return writable_bytes(); }
    /// Only of a buffer that was asked for as writable.
    [[nodiscard]] std::span<std::byte> writable_bytes() const {
        return {static_cast<std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
    }

  private:
    Py_buffer view_{};
};

}  // namespace windeck
