#include <pybind11/typing.h>

#include "bindings.hpp"
#include "orders/checks.hpp"
#include "windeck/base/hash.hpp"

// What orders written in Python (orders.py) share with the native one: the checks, so that all
// refuse the same things in the same words, and the hash their keys are derived with.

namespace windeck {
namespace {

py::typing::Tuple<IndexArray, IndexArray> checked_bulk(const py::object& values, const Number& size,
                                                       const std::string& what,
                                                       const py::object& out) {
    const std::uint64_t n = order_size(size.value);
    const Indices indices = index_array(values, what + "s");
    if (!all_inside(indices.values, n)) refuse_first_outside(what, indices.values, n);
    return py::make_tuple(indices.owner, bulk_out(out, indices, what + "s"));
}

py::typing::Tuple<py::int_, py::int_, IndexArray> checked_range(const Number& start,
                                                                const Number& stop,
                                                                const Number& size,
                                                                const py::object& out) {
    const Range range = strict_range(start.value, stop.value, order_size(size.value));
    return py::make_tuple(range.start, range.stop, int64_out(out, range.length(), "out"));
}

std::uint64_t hash_words(const py::Args<Number>& words) {
    std::uint64_t state = 0;
    for (const py::handle w : words)
        state = absorb(state, word(w, "word"));
    return state;
}

}  // namespace

void bind_orders(py::module_& m) {
    m.def(
        "checked_integer",
        [](const Number& value, const std::string& what, std::int64_t low) {
            return integer(value.value, what, low);
        },
        py::arg("value"), py::arg("what"), py::arg("low"), "An int in [low, 2^63).");
    m.def(
        "checked_one",
        [](const Number& value, const Number& size, const std::string& what, bool from_end) {
            const std::uint64_t n = order_size(size.value);
            return inside(value.value, n, what, from_end ? n : 0);
        },
        py::arg("value"), py::arg("size"), py::arg("what"), py::kw_only(),
        py::arg("from_end") = false,
        "An int in [0, size); `from_end`: negative ones count from the end.");
    m.def("checked_bulk", &checked_bulk, py::arg("values"), py::arg("size"), py::arg("what"),
          py::arg("out"), "(values, output) as int64 arrays, all values in [0, size).");
    m.def("checked_range", &checked_range, py::arg("start"), py::arg("stop"), py::arg("size"),
          py::arg("out"), "(start, stop, output) of order.slice.");
    m.def(
        "hash_words", &hash_words,
        "Words of 64 bits hashed to one, as in cpp/include/windeck/base/hash.hpp: a key for a part "
        "that has nothing to do with any other part's.");
}

}  // namespace windeck
