#include "arrays.hpp"
#include "bindings.hpp"
#include "windeck/permutation.hpp"
#include "words.hpp"

namespace windeck {
namespace {

using Bulk = void (Permutation::*)(std::span<const std::int64_t>, std::span<std::int64_t>) const;

constexpr Bulk take_in_bulk = &Permutation::take;
constexpr Bulk index_in_bulk = &Permutation::index_of;

/// Whether all values lie in [0, size); without branches, so that it costs little beside the work.
bool all_inside(std::span<const std::int64_t> values, std::uint64_t size) {
    const auto last = static_cast<std::int64_t>(size - 1);
    std::int64_t negative = 0;
    for (const std::int64_t value : values) {
        negative |= value | static_cast<std::int64_t>(static_cast<std::uint64_t>(last) -
                                                      static_cast<std::uint64_t>(value));
    }
    return negative >= 0;
}

[[noreturn]] void outside(const std::string& what, const std::string& found, std::uint64_t size) {
    throw py::index_error(what + " " + found + " is outside of the order, expected an integer in " +
                          "[0, " + std::to_string(size) + ")");
}

[[noreturn]] void first_outside(const std::string& what, std::span<const std::int64_t> values,
                                std::uint64_t size) {
    const auto bad = std::ranges::find_if(
        values, [size](std::int64_t v) { return static_cast<std::uint64_t>(v) >= size; });
    outside(what, std::to_string(*bad) + " at [" + std::to_string(bad - values.begin()) + "]",
            size);
}

/// One position or sample; negative ones count from the end where `wrap` says so.
std::uint64_t inside(py::handle value, std::uint64_t size, const std::string& what, bool wrap) {
    if (PyIndex_Check(value.ptr()) == 0) {
        throw py::type_error(what + " is of type " + type_name(value) + ", expected an integer");
    }
    const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!number) throw py::error_already_set();
    int overflow = 0;
    std::int64_t found = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    if (wrap && found < 0) found += static_cast<std::int64_t>(size);
    if (overflow != 0 || found < 0 || static_cast<std::uint64_t>(found) >= size) {
        outside(what, text(number), size);
    }
    return static_cast<std::uint64_t>(found);
}

py::array in_bulk(const Permutation& order, Bulk bulk, py::handle values, py::handle out,
                  const std::string& what) {
    const Indices indices = index_array(values, what + "s");
    py::array result = int64_out(out, indices.owner.size(), "out");
    require_disjoint({extent(result, "out")}, {extent(indices.owner, what + "s")});
    const std::span<std::int64_t> into = int64_span(result);
    bool good = false;
    {
        // Everything is a C++ value by now: let other Python threads run.
        const py::gil_scoped_release release;
        good = all_inside(indices.values, order.size());
        if (good) (order.*bulk)(indices.values, into);
    }
    if (!good) first_outside(what, indices.values, order.size());
    return result;
}

py::array slice_into(const Permutation& order, std::uint64_t start, std::uint64_t stop,
                     py::handle out) {
    py::array result = int64_out(out, static_cast<py::ssize_t>(stop - start), "out");
    const std::span<std::int64_t> into = int64_span(result);
    const py::gil_scoped_release release;
    order.slice(start, into);
    return result;
}

py::array slice(const Permutation& order, py::handle start, py::handle stop, py::handle out) {
    const std::uint64_t past = order.size() + 1;
    const std::uint64_t from = inside(start, past, "start", false);
    const std::uint64_t to = inside(stop, past, "stop", false);
    if (to < from) {
        throw py::value_error("stop is " + std::to_string(to) + ", expected at least start, " +
                              std::to_string(from));
    }
    return slice_into(order, from, to, out);
}

/// order[a:b:c]: bounds beyond the ends are clipped as in any Python sequence.
py::array sliced(const Permutation& order, const py::slice& range) {
    py::ssize_t start = 0, stop = 0, step = 0, length = 0;
    if (!range.compute(static_cast<py::ssize_t>(order.size()), &start, &stop, &step, &length)) {
        throw py::error_already_set();
    }
    if (step == 1) {
        const auto from = static_cast<std::uint64_t>(start);
        return slice_into(order, from, from + static_cast<std::uint64_t>(length), py::none());
    }
    py::array_t<std::int64_t> positions(length);
    const std::span<std::int64_t> values = int64_span(positions);
    for (std::size_t j = 0; j < values.size(); ++j) {
        values[j] = start + static_cast<std::int64_t>(j) * step;
    }
    return in_bulk(order, take_in_bulk, positions, py::none(), "position");
}

py::object index(const Permutation& order, py::handle samples, py::handle out) {
    const bool one = PyIndex_Check(samples.ptr()) != 0 && !py::isinstance<py::array>(samples);
    if (one && out.is_none()) {
        return py::int_(order.index_of(inside(samples, order.size(), "sample", false)));
    }
    return in_bulk(order, index_in_bulk, samples, out, "sample");
}

std::string repr(const Permutation& order) {
    return "Permutation(" + std::to_string(order.size()) +
           ", seed=" + std::to_string(order.seed()) + ", epoch=" + std::to_string(order.epoch()) +
           ")";
}

py::tuple state(const Permutation& order) {
    return py::make_tuple(Permutation::order_version, order.size(), order.seed(), order.epoch());
}

Permutation from_state(const py::tuple& state) {
    if (state.size() != 4) {
        throw py::value_error("the pickled order holds " + std::to_string(state.size()) +
                              " numbers, expected 4");
    }
    const std::uint64_t version = word(state[0], "order_version");
    if (version != Permutation::order_version) {
        throw py::value_error(
            "the pickled order has order_version " + std::to_string(version) + ", expected " +
            std::to_string(Permutation::order_version) +
            ": it would give another order now; make it anew, or use the windeck it was made with");
    }
    return Permutation(order_size(state[1]), word(state[2], "seed"), word(state[3], "epoch"));
}

constexpr const char* about = R"(A shuffle that needs no memory: position -> sample and back.

Parameters
----------
size : int
    Number of samples, 1 to 2**63 - 1.
seed, epoch : int
    0 to 2**64 - 1 each. They are hashed, never added: (seed 42, epoch 1) has nothing to do
    with (seed 43, epoch 0).

Raises
------
ValueError
    A size, seed or epoch out of its range.
TypeError
    A size, seed or epoch that is no integer.

Notes
-----
O(1) memory and constant time a sample, wherever it lies. The order of given (size, seed, epoch)
is the same on every machine and in every later version (see ORDER_VERSION).

Examples
--------
>>> import windeck as wd
>>> order = wd.Permutation(10, seed=42, epoch=1)
>>> sorted(int(sample) for sample in order[:])
[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
>>> order.index(order[3])
3
)";

constexpr const char* about_slice = R"(The samples at positions start to stop, stop excluded.

Parameters
----------
start, stop : int
    0 <= start <= stop <= size.
out : ndarray, optional
    int64, shape (stop - start,), contiguous and writeable; written to and returned.

Returns
-------
ndarray
    int64, shape (stop - start,).

Raises
------
IndexError
    A start or stop outside of [0, size].
ValueError
    A stop before start; an `out` of wrong shape, not contiguous or read-only.
TypeError
    An `out` of another dtype.
)";

constexpr const char* about_take = R"(The samples at the given positions.

Parameters
----------
positions : ndarray
    int64, shape (n,), each in [0, size). It must not change during the call.
out : ndarray, optional
    int64, shape (n,), contiguous, writeable and apart from `positions`; written to and returned.

Returns
-------
ndarray
    int64, shape (n,).

Raises
------
IndexError
    A position outside of [0, size).
ValueError
    More than one dimension; an `out` of wrong shape, not contiguous, read-only or overlapping.
TypeError
    Another dtype than int64.
)";

constexpr const char* about_index = R"(The positions of the given samples: the inverse.

Parameters
----------
samples : int or ndarray
    A sample, or int64 of shape (n,), each in [0, size). It must not change during the call.
out : ndarray, optional
    As in `take`.

Returns
-------
int or ndarray
    An int for an int, else int64 of shape (n,).

Raises
------
IndexError, ValueError, TypeError
    As in `take`.
)";

}  // namespace

void bind_permutation(py::module_& m) {
    m.attr("ORDER_VERSION") = Permutation::order_version;
    py::class_<Permutation>(m, "Permutation", about)
        .def(py::init([](const py::object& size, const py::object& seed, const py::object& epoch) {
                 return Permutation(order_size(size), word(seed, "seed"), word(epoch, "epoch"));
             }),
             py::arg("size"), py::kw_only(), py::arg("seed") = 0, py::arg("epoch") = 0)
        .def_property_readonly("size", &Permutation::size, "Number of samples.")
        .def_property_readonly("seed", &Permutation::seed, "The seed it was made with.")
        .def_property_readonly("epoch", &Permutation::epoch, "The epoch it was made for.")
        .def("__len__", &Permutation::size)
        .def("__getitem__", &sliced, py::arg("positions"))
        .def(
            "__getitem__",
            [](const Permutation& order, const py::object& position) {
                return order.at(inside(position, order.size(), "position", true));
            },
            py::arg("position"))
        .def("slice", &slice, py::arg("start"), py::arg("stop"), py::arg("out") = py::none(),
             about_slice)
        .def(
            "take",
            [](const Permutation& order, const py::object& positions, const py::object& out) {
                return in_bulk(order, take_in_bulk, positions, out, "position");
            },
            py::arg("positions"), py::arg("out") = py::none(), about_take)
        .def("index", &index, py::arg("samples"), py::arg("out") = py::none(), about_index)
        .def("__repr__", &repr)
        .def(
            "__eq__", [](const Permutation& x, const Permutation& y) { return x == y; },
            py::is_operator())
        .def("__hash__", [](const Permutation& order) { return py::hash(state(order)); })
        .def(py::pickle(&state, &from_state));
}

}  // namespace windeck
