#include <utility>

#include "base/gil.hpp"
#include "base/numbers.hpp"
#include "bindings.hpp"
#include "packing/objects.hpp"

namespace windeck {
namespace {

constexpr const char* order_doc =
    R"(PartOrder(sizes, *, seed=0, epoch=0, every=1)

Parts in the order of Permutation(parts, seed=seed, epoch=epoch), with prefix sums of their sizes.

Parameters
----------
sizes : int64[P]
    The size of each part, 0 or more.
seed, epoch : int
    0 to 2**64 - 1 each, hashed.
every : int
    The number of parts per stored sum: a larger one needs less memory and more time to find.

Raises
------
ValueError
    No parts, a negative size, or `every` below 1.
OverflowError
    A total of more than 2**63 - 1.

Notes
-----
O(P) time. Memory per part is 8 bytes for the sizes, which all epochs share, and 8 / every bytes for
the sums.

Examples
--------
>>> import numpy as np
>>> from windeck._core import PartOrder
>>> order = PartOrder(np.array([3, 0, 5]), seed=1)
>>> order.total, len(order)
(8, 3)
>>> sum(order.before(order.index(part)) <= 4 for part in (0, 2)) in (1, 2)
True
)";

std::unique_ptr<PartOrder> make_order(py::handle sizes, py::handle seed, py::handle epoch,
                                      py::handle every) {
    const Indices given = index_array(sizes, "sizes");
    const std::uint64_t seed_word = uint64(seed, "seed");
    const std::uint64_t epoch_word = uint64(epoch, "epoch");
    const std::int64_t step = integer(every, "every", 1);
    const GilRelease unlocked;
    auto held =
        std::make_shared<std::vector<std::int64_t>>(given.values.begin(), given.values.end());
    return std::make_unique<PartOrder>(std::move(held), seed_word, epoch_word, step);
}

py::tuple order_pieces(const PartOrder& self, py::handle indices, py::handle stride,
                       py::handle length, py::handle samples) {
    const Indices wanted = index_array(indices, "indices");
    const std::int64_t step = integer(stride, "stride", 1);
    const std::int64_t row = integer(length, "length", 1);
    const std::int64_t count = integer(samples, "samples", 0);
    std::int64_t end = 0;
    if (count > 0 && (__builtin_mul_overflow(count - 1, step, &end) ||
                      __builtin_add_overflow(end, row, &end) || end > self.total())) {
        throw py::value_error(std::to_string(count) + " samples of " + std::to_string(row) +
                              " positions, " + std::to_string(step) + " apart, do not fit into " +
                              std::to_string(self.total()));
    }
    Pieces pieces;
    std::vector<std::int64_t> parts;
    {
        const GilRelease unlocked;
        pieces = self.pieces(wanted.values, step, row, count, parts);
    }
    return py::make_tuple(int64_array(parts)) + piece_arrays(pieces);
}

}  // namespace

void bind_part_order(py::module_& m) {
    py::class_<PartOrder>(m, "PartOrder", order_doc)
        .def(py::init(&make_order), py::arg("sizes"), py::kw_only(), py::arg("seed") = 0,
             py::arg("epoch") = 0, py::arg("every") = 1)
        .def("__len__",
             [](const PartOrder& self) { return static_cast<std::size_t>(self.parts()); })
        .def_property_readonly("total", &PartOrder::total, "The sum of all sizes.")
        .def(
            "reordered",
            [](const PartOrder& self, py::handle seed, py::handle epoch) {
                const std::uint64_t seed_word = uint64(seed, "seed");
                const std::uint64_t epoch_word = uint64(epoch, "epoch");
                const GilRelease unlocked;
                return std::make_unique<PartOrder>(self.sizes(), seed_word, epoch_word,
                                                   self.every());
            },
            py::kw_only(), py::arg("seed"), py::arg("epoch"),
            "Return the same parts in another order; both share the sizes.")
        .def(
            "at",
            [](const PartOrder& self, py::handle place) {
                return self.at(place_in(place, "place", self.parts()));
            },
            py::arg("place"), "Return the part at a place.")
        .def(
            "size",
            [](const PartOrder& self, py::handle part) {
                const std::int64_t number = place_in(part, "part", self.parts());
                return (*self.sizes())[static_cast<std::size_t>(number)];
            },
            py::arg("part"), "Return the size of a part.")
        .def(
            "index",
            [](const PartOrder& self, py::handle part) {
                return self.index_of(place_in(part, "part", self.parts()));
            },
            py::arg("part"), "Return the place of a part.")
        .def(
            "before",
            [](const PartOrder& self, py::handle place) {
                return self.before(integer(place, "place", 0, self.parts()));
            },
            py::arg("place"), "Return the sum of the sizes before a place.")
        .def(
            "pieces", &order_pieces, py::arg("indices"), py::arg("stride"), py::arg("length"),
            py::arg("samples"),
            "Return the pieces of parts that hold the positions [i * stride, i * stride + length) "
            "of "
            "each index i (int64[k]), as (parts, row_offsets, part_of, starts, lengths). Row r has "
            "the pieces row_offsets[r] to row_offsets[r + 1]; piece p has lengths[p] positions of "
            "part parts[part_of[p]] from starts[p] on. IndexError for an index outside "
            "[0, samples).");
}

}  // namespace windeck
