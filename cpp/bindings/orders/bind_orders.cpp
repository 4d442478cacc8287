#include <pybind11/typing.h>

#include "bindings.hpp"
#include "orders/checks.hpp"
#include "windeck/base/hash.hpp"

// For the orders written in Python (orders.py): the checks of arguments, with the same messages as
// in Permutation, and the hash that derives keys.

namespace windeck {
namespace {

py::typing::Tuple<IndexArray, IndexArray> checked_bulk(const py::object& values,
                                                       const IntegerLike& size,
                                                       const std::string& what,
                                                       const py::object& out) {
    const std::uint64_t n = order_size(size.value);
    const Indices indices = index_array(values, what + "s");
    if (!all_in_range(indices.values, n)) throw_first_out_of_range(what, indices.values, n);
    return py::make_tuple(indices.owner, bulk_out(out, indices, what + "s"));
}

py::typing::Tuple<py::int_, py::int_, IndexArray> checked_range(const IntegerLike& start,
                                                                const IntegerLike& stop,
                                                                const IntegerLike& size,
                                                                const py::object& out) {
    const Range range = strict_range(start.value, stop.value, order_size(size.value));
    return py::make_tuple(range.start, range.stop, int64_out(out, range.length(), "out"));
}

std::uint64_t hash_words(const py::Args<IntegerLike>& words) {
    std::uint64_t state = 0;
    for (const py::handle word : words)
        state = absorb(state, uint64(word, "word"));
    return state;
}

}  // namespace

void bind_orders(py::module_& m) {
    m.def(
        "checked_one",
        [](const IntegerLike& value, const IntegerLike& size, const std::string& what,
           bool from_end) {
            const std::uint64_t n = order_size(size.value);
            return index_in(value.value, n, what, from_end ? n : 0);
        },
        py::arg("value"), py::arg("size"), py::arg("what"), py::kw_only(),
        py::arg("from_end") = false,
        "Return `value` as an int in [0, size); with `from_end`, negative ones count from the "
        "end.");
    m.def("checked_bulk", &checked_bulk, py::arg("values"), py::arg("size"), py::arg("what"),
          py::arg("out"),
          "Return (values, output) as int64 arrays; all values must be in [0, size).");
    m.def("checked_range", &checked_range, py::arg("start"), py::arg("stop"), py::arg("size"),
          py::arg("out"), "Return the checked (start, stop, output) of order.slice.");
    m.def("hash_words", &hash_words,
          "Hash 64-bit words to one, as in cpp/include/windeck/base/hash.hpp: keys of different "
          "words "
          "are independent.");
}

}  // namespace windeck
