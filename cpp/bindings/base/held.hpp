// Bytes that any object lends: bytes, memoryviews, arrays.

#pragma once

#include <cstddef>
#include <span>

#include "base/arrays.hpp"

namespace windeck {

/// The buffer of an object, given back at the end of the scope; make and end it with the GIL held.
/// A TypeError for what has none, a ValueError for one that is strided.
class Held {
  public:
    explicit Held(py::handle object) {
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
    ~Held() { PyBuffer_Release(&view_); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

    [[nodiscard]] std::span<const std::byte> bytes() const {
        return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
    }

  private:
    Py_buffer view_{};
};

}  // namespace windeck
