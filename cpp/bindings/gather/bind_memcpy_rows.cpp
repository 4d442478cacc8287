#include <cstring>

#include "base/arrays.hpp"
#include "base/gil.hpp"
#include "bindings.hpp"

namespace windeck {

// For benchmarks of the gather: the same bytes, copied with memcpy only.
void bind_memcpy_rows(py::module_& m) {
    m.def(
        "_memcpy_rows",
        [](const py::array& matrix, py::handle starts, py::handle rows, const py::array& out) {
            const Indices places = index_array(starts, "starts");
            const std::int64_t count = integer(rows, "rows", 0);
            if (matrix.ndim() != 2 || (matrix.flags() & py::array::c_style) == 0 ||
                (out.flags() & py::array::c_style) == 0 || !out.writeable()) {
                throw py::value_error("expected a C-contiguous matrix and out");
            }
            const auto width = static_cast<std::int64_t>(matrix.shape(1) * matrix.itemsize());
            for (const std::int64_t start : places.values) {
                if (start < 0 || count > matrix.shape(0) - start) {
                    throw py::index_error("a start lies outside the matrix");
                }
            }
            const auto wanted = static_cast<std::int64_t>(places.values.size());
            if (static_cast<std::int64_t>(out.nbytes()) != wanted * count * width) {
                throw py::value_error("out does not have the size of the windows");
            }
            const auto* const from = static_cast<const std::byte*>(matrix.data());
            auto* to = static_cast<std::byte*>(const_cast<void*>(out.data()));
            const auto bytes = static_cast<std::size_t>(count * width);
            const GilRelease unlocked;
            for (const std::int64_t start : places.values) {
                std::memcpy(to, from + start * width, bytes);
                to += bytes;
            }
        },
        "Copy rows [start, start + rows) of a matrix for each start, with memcpy; for benchmarks.");
}

}  // namespace windeck
