#include <pybind11/typing.h>

#include <utility>

#include "base/arrays.hpp"
#include "base/gil.hpp"
#include "bindings.hpp"
#include "windeck/base/cumulative.hpp"

namespace windeck {
namespace {

using Places = py::typing::Tuple<IndexArray, IndexArray>;

constexpr const char* class_doc = R"(Cumulative(sizes)

Prefix sums of the sizes of parts, to find the part that holds a position.

Parameters
----------
sizes : int64[S]
    The size of each part, 0 or more. No position is in a part of size 0.

Raises
------
TypeError
    A dtype other than int64.
ValueError
    A negative size.
OverflowError
    A total of more than 2**63 - 1.

Notes
-----
16 bytes of memory per part. Immutable and thread-safe; calls release the GIL.

Examples
--------
>>> import numpy as np
>>> from windeck._core import Cumulative
>>> files = Cumulative(np.array([3, 0, 5]))
>>> files.total, len(files)
(8, 3)
>>> [a.tolist() for a in files.find(np.array([2, 3, 7]))]
[[0, 2, 2], [2, 0, 4]]
>>> files.before(np.array([0, 2, 3])).tolist()
[0, 3, 8]
)";

constexpr const char* find_doc = R"(Find the part of each position, and the offset in that part.

Parameters
----------
positions : int64[k]
    Each in [0, total).

Returns
-------
part, within : int64[k]
    The position is before(part) + within.

Raises
------
IndexError
    A position outside [0, total).
TypeError
    A dtype other than int64.

Notes
-----
Expected O(1) time per position for parts of similar size, O(log S) at worst.
)";

Cumulative make(py::handle sizes) {
    const Indices given = index_array(sizes, "sizes");
    for (std::size_t i = 0; i < given.values.size(); ++i) {
        if (given.values[i] < 0) {
            throw py::value_error("sizes[" + std::to_string(i) + "] is " +
                                  std::to_string(given.values[i]) + ", expected 0 or more");
        }
    }
    return Cumulative(given.values);
}

Places find(const Cumulative& self, py::handle positions) {
    const Indices wanted = index_array(positions, "positions");
    const auto size = static_cast<py::ssize_t>(wanted.values.size());
    IndexArray parts = int64_out(py::none(), size, "parts");
    IndexArray within = int64_out(py::none(), size, "within");
    const auto parts_out = int64_span(parts);
    const auto within_out = int64_span(within);
    const auto total = static_cast<std::uint64_t>(self.total());
    bool good = false;
    {
        const GilRelease unlocked;
        good = total != 0 ? all_in_range(wanted.values, total) : wanted.values.empty();
        if (good) self.find(wanted.values, parts_out.data(), within_out.data());
    }
    if (!good) throw_first_out_of_range("position", wanted.values, total);
    return py::make_tuple(std::move(parts), std::move(within));
}

IndexArray before(const Cumulative& self, py::handle parts) {
    const Indices wanted = index_array(parts, "parts");
    IndexArray result =
        int64_out(py::none(), static_cast<py::ssize_t>(wanted.values.size()), "before");
    const auto out = int64_span(result);
    const auto ends = static_cast<std::uint64_t>(self.parts()) + 1;
    if (!all_in_range(wanted.values, ends)) throw_first_out_of_range("part", wanted.values, ends);
    for (std::size_t i = 0; i < out.size(); ++i)
        out[i] = self.before(wanted.values[i]);
    return result;
}

}  // namespace

void bind_cumulative(py::module_& m) {
    py::class_<Cumulative>(m, "Cumulative", class_doc)
        .def(py::init(&make), py::arg("sizes"))
        .def_property_readonly("total", &Cumulative::total, "The sum of all sizes.")
        .def(
            "__len__",
            [](const Cumulative& self) { return static_cast<std::size_t>(self.parts()); },
            "The number of parts.")
        .def("find", &find, py::arg("positions"), find_doc)
        .def("before", &before, py::arg("parts"),
             "Return the number of positions before each part, int64[k]. `parts` is int64[k], each "
             "in "
             "[0, len], else an IndexError.")
        .def("__repr__", [](const Cumulative& self) {
            return "Cumulative(" + std::to_string(self.parts()) + " parts, " +
                   std::to_string(self.total()) + " in all)";
        });
}

}  // namespace windeck
