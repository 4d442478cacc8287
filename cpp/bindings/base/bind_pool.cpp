#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "base/batch.hpp"
#include "bindings.hpp"
#include "windeck/base/parallel.hpp"
#include "windeck/base/pool.hpp"

namespace windeck {
namespace {

py::dict empty_rows(const py::object& layout, const IntegerLike& rows) {
    if (!py::hasattr(layout, "keys")) {
        throw py::type_error("layout is of type " + type_name(layout) +
                             ", expected a dict of dtypes and shapes by key");
    }
    const std::int64_t count = integer(rows.value, "count", 0);
    std::vector<BatchArray> parts;
    parts.reserve(py::len(layout));
    for (const auto& [key, value] : py::dict(layout)) {
        py::detail::make_caster<std::pair<py::dtype, std::vector<py::ssize_t>>> row;
        if (!row.load(value, true)) {
            throw py::type_error("'" + text(key) + "' has " + text(py::repr(value)) +
                                 ", expected a dtype and the shape of a row");
        }
        const auto [dtype, shape] =
            py::detail::cast_op<std::pair<py::dtype, std::vector<py::ssize_t>>>(row);
        if (dtype.attr("hasobject").cast<bool>()) {
            throw py::type_error("'" + text(key) + "' has dtype " + text(dtype) +
                                 ", expected values and not references to objects");
        }
        // Keys are those of the layout, also where they are no str.
        BatchArray part{py::reinterpret_borrow<py::str>(key),
                        dtype,
                        {count},
                        static_cast<std::size_t>(dtype.itemsize())};
        for (const py::ssize_t size : shape) {
            if (size < 0) {
                throw py::value_error("'" + text(key) + "' has rows of shape " +
                                      text(value.attr("__getitem__")(1)) +
                                      ", expected sizes of at least 0");
            }
            part.shape.push_back(size);
            if (__builtin_mul_overflow(part.row_bytes, static_cast<std::size_t>(size),
                                       &part.row_bytes)) {
                throw std::bad_alloc();
            }
        }
        parts.push_back(std::move(part));
    }
    return batch_dict(parts, new_batch(parts, count));
}

}  // namespace

void bind_pool(py::module_& m) {
    m.def(
        "pool_stats",
        [] {
            const PoolStats stats = pool_stats();
            py::dict out;
            out["allocations"] = stats.allocations;
            out["takes"] = stats.takes;
            out["live"] = stats.live;
            out["live_bytes"] = stats.live_bytes;
            out["free"] = stats.free;
            out["free_bytes"] = stats.free_bytes;
            return out;
        },
        "Return the statistics of the memory pool of batches: slabs allocated and taken so far, "
        "and "
        "slabs and bytes in use (live) and free.");
    m.def(
        "empty_rows", &empty_rows, py::arg("layout"), py::arg("count"),
        "Return uninitialised arrays of `count` rows in memory of the pool, each at a multiple of "
        "64 bytes. `layout` has the dtype and the shape of a row by key.");
    m.def("trim_pool", &trim_pool, "Return the free memory of the pool to the system.");
    m.def("default_threads", &default_threads,
          "Return the default number of threads: WINDECK_NUM_THREADS, or that of the processors.");
}

}  // namespace windeck
