#include <pybind11/typing.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "held.hpp"
#include "windeck/crc32c.hpp"

namespace windeck {
namespace {

using Found = py::typing::List<py::typing::Tuple<py::bytes, int, int>>;

constexpr const char* doc = R"(Slices of columns, each slice laid out as one value, and their sums.

Parameters
----------
fronts : sequence of bytes
    What each slice begins with.
columns : sequence of buffers
    Contiguous, each of stops[-1] items.
stops : sequence of int
    Where each slice ends and the next one begins, ascending.
body : buffer
    Contiguous, of body_stops[-1] items.
body_stops : sequence of int
    The same for the body, which stays where it is.

Returns
-------
list of (bytes, int, int)
    Of each slice: its front, the slice of each column and 0s up to a multiple of 8 bytes, joined;
    the CRC32C of that followed by the slice of the body; the CRC32C of the latter alone.

Raises
------
TypeError, ValueError
    For what is no buffer, and for lengths that do not fit one another.

Notes
-----
O(bytes). Other Python threads run meanwhile, and the lock is asked for once for all slices.

Examples
--------
>>> from windeck._core import crc32c, crc32c_slices
>>> [(head, total, last)] = crc32c_slices([b"front"], [b"ab"], [2], b"body", [4])
>>> head, total == crc32c(head + b"body"), last == crc32c(b"body")
(b'frontab\x00', True, True)
)";

/// A buffer of items, in slices.
struct Sliced {
    const std::byte* data;
    std::size_t item;  // bytes

    std::span<const std::byte> part(std::size_t from, std::size_t to) const {
        return {data + from * item, (to - from) * item};
    }
};

std::vector<std::size_t> ascending(const py::sequence& numbers, std::size_t count,
                                   const char* name) {
    if (numbers.size() != count) {
        throw py::value_error(std::string(name) + " has " + std::to_string(numbers.size()) +
                              " numbers, expected " + std::to_string(count) +
                              " as there are fronts");
    }
    std::vector<std::size_t> out{0};
    for (std::size_t i = 0; i < count; ++i) {
        const py::object number = numbers[i];
        const auto stop = static_cast<std::size_t>(integer(number, name, 0));
        if (stop < out.back()) {
            throw py::value_error(std::string(name) + " has " + std::to_string(stop) + " after " +
                                  std::to_string(out.back()) + ", expected ascending numbers");
        }
        out.push_back(stop);
    }
    return out;
}

Sliced sliced(const Held& held, std::size_t items) {
    const std::size_t size = held.bytes().size();
    if (items == 0 ? size != 0 : size % items != 0) {
        throw py::value_error("a buffer has " + std::to_string(size) +
                              " bytes, expected a multiple of its " + std::to_string(items) +
                              " items");
    }
    return {held.bytes().data(), items == 0 ? 0 : size / items};
}

/// A slice: where its bytes go, and what is found out about them.
struct Slice {
    py::bytes head;
    std::span<std::byte> into;
    std::size_t front = 0;  // its first bytes, which are there
    std::uint32_t total = 0;
    std::uint32_t body = 0;
};

Slice with_front(const py::bytes& front, std::size_t more) {
    char* data = nullptr;
    py::ssize_t size = 0;
    if (PyBytes_AsStringAndSize(front.ptr(), &data, &size) != 0) throw py::error_already_set();
    const auto begin = static_cast<std::size_t>(size);
    const std::size_t end = (begin + more + 7) / 8 * 8;
    auto head = py::reinterpret_steal<py::bytes>(
        PyBytes_FromStringAndSize(nullptr, static_cast<py::ssize_t>(end)));
    if (!head) throw py::error_already_set();
    auto* const into = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(head.ptr()));
    std::memcpy(into, data, begin);
    return {std::move(head), {into, end}, begin};
}

Found slices(const py::sequence& fronts, const py::sequence& columns, const py::sequence& stops,
             const py::object& body, const py::sequence& body_stops) {
    const std::size_t count = fronts.size();
    const auto ends = ascending(stops, count, "stops");
    const auto body_ends = ascending(body_stops, count, "body_stops");
    std::deque<Held> held;  // they do not move
    std::vector<Sliced> parts;
    std::size_t item = 0;
    for (const py::handle column : columns) {
        parts.push_back(sliced(held.emplace_back(column), ends.back()));
        item += parts.back().item;
    }
    const Sliced rows = sliced(held.emplace_back(body), body_ends.back());
    std::vector<Slice> out;
    out.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
        const py::object front = fronts[i];
        if (!py::isinstance<py::bytes>(front))
            throw py::type_error("a front is of type " + type_name(front) + ", expected bytes");
        out.push_back(
            with_front(py::reinterpret_borrow<py::bytes>(front), (ends[i + 1] - ends[i]) * item));
    }
    {
        const py::gil_scoped_release unlocked;
        for (std::size_t i = 0; i < count; ++i) {
            const std::span<std::byte> head = out[i].into;
            std::byte* to = head.data() + out[i].front;
            for (const Sliced& part : parts) {
                const auto some = part.part(ends[i], ends[i + 1]);
                if (!some.empty()) std::memcpy(to, some.data(), some.size());
                to += some.size();
            }
            std::fill(to, head.data() + head.size(), std::byte{0});
            const auto own = rows.part(body_ends[i], body_ends[i + 1]);
            out[i].body = crc32c(own);
            out[i].total = crc32c_joined(crc32c(head), out[i].body, own.size());
        }
    }
    Found made;
    for (const Slice& slice : out) {
        made.append(py::make_tuple(slice.head, slice.total, slice.body));
    }
    return made;
}

}  // namespace

void bind_crc32c_slices(py::module_& m) {
    m.def("crc32c_slices", &slices, py::arg("fronts"), py::arg("columns"), py::arg("stops"),
          py::arg("body"), py::arg("body_stops"), doc);
}

}  // namespace windeck
