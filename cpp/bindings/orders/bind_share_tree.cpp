#include <pybind11/typing.h>

#include <utility>

#include "base/arrays.hpp"
#include "base/gil.hpp"
#include "bindings.hpp"
#include "windeck/orders/share_tree.hpp"

namespace windeck {
namespace {

using Places = py::typing::Tuple<IndexArray, IndexArray>;

constexpr std::uint64_t any_size = std::uint64_t{1} << 63;

constexpr const char* class_doc = R"(ShareTree(sizes)

Division of an endless sequence among parts, in exact shares, with random access both ways.

After any number of positions each part is within 2 of its exact share, which is its size over the
sum of all sizes.

Parameters
----------
sizes : int64[P]
    The size of each part, 0 or more; their sum is from 1 to 2**62.

Raises
------
TypeError
    A dtype other than int64.
ValueError
    A negative size, or a sum out of range.

Notes
-----
O(P log P) time and O(P) memory. Immutable and thread-safe; calls release the GIL.

Examples
--------
>>> import numpy as np
>>> from windeck._core import ShareTree
>>> tree = ShareTree(np.array([6273, 12000, 34, 880]))
>>> part, number = tree.locate(np.arange(8))
>>> part.tolist(), number.tolist()
([1, 0, 1, 1, 0, 1, 0, 1], [0, 0, 1, 2, 1, 3, 2, 4])
>>> tree.count_before(19187 * 10**9).tolist()
[6273000000000, 12000000000000, 34000000000, 880000000000]
>>> tree.position_of(0, np.array([0, 1, 2]), 100).tolist()
[1, 4, 6]
)";

Indices positive(py::handle values, const std::string& name) {
    Indices found = index_array(values, name);
    if (!all_in_range(found.values, any_size)) {
        throw_first_out_of_range(name, found.values, any_size);
    }
    return found;
}

Places locate(const ShareTree& self, py::handle positions) {
    const Indices wanted = positive(positions, "positions");
    const auto size = static_cast<py::ssize_t>(wanted.values.size());
    IndexArray parts = int64_out(py::none(), size, "parts");
    IndexArray numbers = int64_out(py::none(), size, "numbers");
    const auto parts_out = int64_span(parts);
    const auto numbers_out = int64_span(numbers);
    {
        const GilRelease unlocked;
        self.locate(wanted.values, parts_out.data(), numbers_out.data());
    }
    return py::make_tuple(std::move(parts), std::move(numbers));
}

IndexArray position_of(const ShareTree& self, py::handle part, py::handle numbers,
                       py::handle most) {
    const std::uint64_t of = index_in(part, self.parts(), "part");
    const Indices wanted = positive(numbers, "numbers");
    const std::int64_t limit = integer(most, "most", 0);
    IndexArray result =
        int64_out(py::none(), static_cast<py::ssize_t>(wanted.values.size()), "positions");
    const auto out = int64_span(result);
    const GilRelease unlocked;
    self.position_of(of, wanted.values, limit, out.data());
    return result;
}

IndexArray count_before(const ShareTree& self, py::handle count) {
    const std::int64_t first = integer(count, "count", 0);
    IndexArray result = int64_out(py::none(), static_cast<py::ssize_t>(self.parts()), "counts");
    self.count_before(first, int64_span(result));
    return result;
}

}  // namespace

void bind_share_tree(py::module_& m) {
    py::class_<ShareTree>(m, "ShareTree", class_doc)
        .def(py::init(
                 [](py::handle sizes) { return ShareTree(index_array(sizes, "sizes").values); }),
             py::arg("sizes"))
        .def_property_readonly(
            "counts", [](const ShareTree& self) { return int64_array(self.sizes()); },
            "The size of each part, int64[P]. O(P).")
        .def_property_readonly("period", &ShareTree::total, "The sum of all sizes.")
        .def("locate", &locate, py::arg("positions"),
             "Return the part at each position (int64[k], 0 or more), and the number of earlier "
             "positions of that part: two int64[k]. O(log P) on average for each.")
        .def("position_of", &position_of, py::arg("part"), py::arg("numbers"), py::arg("most"),
             "Return the position of each number of a part (int64[k], from 0), the inverse of "
             "locate: int64[k], -1 for positions above `most` and for a part of size 0.")
        .def("count_before", &count_before, py::arg("count"),
             "Return the number of positions of each part among the first `count`, int64[P]. "
             "O(P).");
}

}  // namespace windeck
