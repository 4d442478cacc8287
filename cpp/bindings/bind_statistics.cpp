#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "elements_of.hpp"
#include "held.hpp"
#include "windeck/statistics.hpp"
#include "words.hpp"

namespace windeck {
namespace {

constexpr const char* doc = R"(What the values of a tensor are like, in one pass over its raw bytes.

Parameters
----------
dtype : str
    As torch calls it; see `Search`. A complex number counts by its modulus.
edges : sequence of float, optional
    Of a histogram: ascending, finite, at least two. Bin i is [edge i, edge i + 1), the last one with
    its upper edge.
largest : int
    How many of the finite values of largest magnitude to keep, of equal ones the first.

Raises
------
TypeError, ValueError
    For arguments of other types or values.

Notes
-----
O(n log bins) time, O(bins + largest) memory; may be used from several threads. Results are the same
bits however a tensor is cut into buffers, if at multiples of 2,048 elements.

Examples
--------
>>> import numpy as np
>>> from windeck._core import Statistics
>>> statistics = Statistics("float32", edges=[0, 2, 4], largest=1)
>>> statistics.add(np.array([1, 2, 3, 4, np.nan], np.float32))
>>> found = statistics.result()
>>> found["count"], found["nan"], found["min"], found["mean"], found["histogram"].tolist()
(5, 1, 1.0, 2.5, [1, 3])
>>> found["largest"]
[(3, 4.0)]
)";

constexpr const char* add_doc = R"(Count the elements of a buffer.

Parameters
----------
buffer : bytes, memoryview, array or any contiguous buffer
    Little-endian elements, of any alignment.
base : int, optional
    The position of the first one, for `largest`; None: after those counted so far.

Raises
------
TypeError
    For what has no buffer.
ValueError
    For a strided buffer, bytes that are no whole elements, positions beyond 64 bits.

Notes
-----
Other Python threads run meanwhile.
)";

constexpr const char* merge_doc = R"(Count what other statistics have counted.

Raises
------
ValueError
    When they were made with other arguments.
)";

constexpr const char* result_doc = R"(All that was counted.

Returns
-------
dict
    ``count``, ``nan``, ``positive_infinite``, ``negative_infinite``, ``zeros``; of the finite values
    ``min``, ``max``, ``mean``, ``std`` (of the population) and ``abs_max``, None where there are
    none, min, max and abs_max as int for integers; ``histogram``, int64[bins], and ``edges``,
    float64[bins + 1], or None, with ``below`` and ``above``, of what no bin has; ``largest``, a list
    of (position, value).
)";

/// Statistics that threads may share: one at a time works on them, without the GIL.
struct Shared {
    Shared(Element element, std::vector<double> edges, std::int64_t largest)
        : statistics(element, std::move(edges), largest) {}

    [[nodiscard]] Statistics copy() const {
        const std::scoped_lock lock(mutex);
        return statistics;
    }

    mutable std::mutex mutex;
    Statistics statistics;
};

std::vector<double> edges_of(const py::object& edges) {
    std::vector<double> found;
    if (edges.is_none()) return found;
    if (!py::isinstance<py::iterable>(edges) || py::isinstance<py::str>(edges)) {
        throw py::type_error("edges is of type " + type_name(edges) +
                             ", expected a sequence of numbers");
    }
    for (const py::handle item : edges) {
        const double edge = PyFloat_AsDouble(item.ptr());
        if (edge == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
        if (!std::isfinite(edge) || (!found.empty() && edge <= found.back())) {
            throw py::value_error("edges has " + text(py::float_(edge)) + " at " +
                                  std::to_string(found.size()) +
                                  ", expected finite numbers, each above the one before");
        }
        found.push_back(edge);
    }
    if (found.size() < 2) {
        throw py::value_error("edges has length " + std::to_string(found.size()) +
                              ", expected at least 2");
    }
    return found;
}

std::unique_ptr<Shared> make(const std::string& dtype, const py::object& edges,
                             const Number& largest) {
    const Element element = element_of(dtype);
    const std::int64_t wanted = integer(largest.value, "largest", 0);
    return std::make_unique<Shared>(element, edges_of(edges), wanted);
}

void add(Shared& shared, const py::object& buffer, const py::object& base) {
    const std::int64_t given = base.is_none() ? -1 : integer(base, "base", 0);
    const Held held(buffer);
    const py::gil_scoped_release unlocked;  // before the lock: who holds it may want the GIL
    const std::scoped_lock lock(shared.mutex);
    const std::int64_t first = given < 0 ? shared.statistics.count : given;
    check_elements(held.bytes(), shared.statistics.element(), first);
    shared.statistics.add(held.bytes(), first);
}

void merge(Shared& shared, const Shared& other) {
    const py::gil_scoped_release unlocked;
    const Statistics copy = other.copy();  // not both locks at once: the other may be this one
    const std::scoped_lock lock(shared.mutex);
    shared.statistics.merge(copy);
}

py::object number(Element element, const Scalar& value) {
    switch (kind_of(element)) {
        case ElementKind::whole:
            return py::int_(value.whole);
        case ElementKind::natural:
            return py::int_(value.natural);
        default:
            return py::float_(value.real);
    }
}

py::object largest_magnitude(const Statistics& found) {
    const Element element = found.element();
    switch (kind_of(element)) {
        case ElementKind::whole: {
            const auto size = [](std::int64_t value) {
                const auto word = static_cast<std::uint64_t>(value);
                return value < 0 ? 0 - word : word;
            };
            return py::int_(std::max(size(found.least.whole), size(found.greatest.whole)));
        }
        case ElementKind::natural:
            return py::int_(found.greatest.natural);
        default:
            return py::float_(std::max(std::abs(found.least.real), std::abs(found.greatest.real)));
    }
}

template <typename Value>
py::array copied(std::span<const Value> values) {
    py::array_t<Value> made(static_cast<py::ssize_t>(values.size()));
    std::ranges::copy(values, made.mutable_data());
    return made;
}

Statistics copied_without_gil(const Shared& shared) {
    const py::gil_scoped_release unlocked;
    return shared.copy();
}

py::dict result(const Shared& shared) {
    const Statistics found = copied_without_gil(shared);
    const Element element = found.element();
    py::dict out;
    out["count"] = found.count;
    out["nan"] = found.nan;
    out["positive_infinite"] = found.positive_infinite;
    out["negative_infinite"] = found.negative_infinite;
    out["zeros"] = found.zeros;
    const bool any = found.has_least();
    out["min"] = any ? number(element, found.least) : py::none();
    out["max"] = any ? number(element, found.greatest) : py::none();
    out["mean"] = any ? py::object(py::float_(found.mean())) : py::none();
    out["std"] = any ? py::object(py::float_(found.deviation())) : py::none();
    out["abs_max"] = any ? largest_magnitude(found) : py::none();
    const bool binned = !found.edges().empty();
    out["histogram"] = binned ? py::object(copied(found.bins())) : py::none();
    out["edges"] = binned ? py::object(copied(found.edges())) : py::none();
    out["below"] = found.below;
    out["above"] = found.above;
    py::list largest;
    for (const Largest& one : found.largest())
        largest.append(py::make_tuple(one.position, number(element, found.value_of(one))));
    out["largest"] = largest;
    return out;
}

}  // namespace

void bind_statistics(py::module_& m) {
    py::class_<Shared>(m, "Statistics", doc)
        .def(py::init(&make), py::arg("dtype"), py::kw_only(), py::arg("edges") = py::none(),
             py::arg("largest") = 0)
        .def("add", &add, py::arg("buffer"), py::arg("base") = py::none(), add_doc)
        .def("merge", &merge, py::arg("other"), merge_doc)
        .def("result", &result, result_doc);
}

}  // namespace windeck
