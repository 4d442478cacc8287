#include <pybind11/typing.h>

#include <vector>

#include "base/arrays.hpp"
#include "base/gil.hpp"
#include "bindings.hpp"
#include "orders/checks.hpp"
#include "windeck/base/hash.hpp"
#include "windeck/orders/permutation.hpp"

namespace windeck {

/// Any argument but a slice, for order[position]; checked by index_in.
struct Position {
    py::object value;
};

}  // namespace windeck

template <>
struct py::detail::type_caster<windeck::Position> {
    PYBIND11_TYPE_CASTER(windeck::Position, const_name("typing.SupportsIndex"));

    bool load(handle source, bool) {
        if (PySlice_Check(source.ptr())) return false;
        value.value = reinterpret_borrow<object>(source);
        return true;
    }
};

namespace windeck {
namespace {

using OrderState = py::typing::Tuple<py::int_, py::int_, py::int_, py::int_>;

using Bulk = void (Permutation::*)(std::span<const std::int64_t>, std::span<std::int64_t>) const;

constexpr Bulk take_in_bulk = &Permutation::take;
constexpr Bulk index_in_bulk = &Permutation::index_of;

IndexArray in_bulk(const Permutation& order, Bulk bulk, py::handle values, py::handle out,
                   const std::string& what) {
    const Indices indices = index_array(values, what + "s");
    IndexArray result = bulk_out(out, indices, what + "s");
    const std::span<std::int64_t> into = int64_span(result);
    bool good = false;
    {
        // Everything is a C++ value by now: let other Python threads run.
        const GilRelease release;
        good = all_in_range(indices.values, order.size());
        if (good) (order.*bulk)(indices.values, into);
    }
    if (!good) throw_first_out_of_range(what, indices.values, order.size());
    return result;
}

IndexArray slice(const Permutation& order, const Range& range, py::handle out) {
    IndexArray result = int64_out(out, range.length(), "out");
    const std::span<std::int64_t> into = int64_span(result);
    const GilRelease release;
    order.slice(range.start, into);
    return result;
}

/// order[a:b:c]: bounds beyond the ends are clipped as in any Python sequence.
IndexArray sliced(const Permutation& order, const py::slice& range) {
    py::ssize_t start = 0, stop = 0, step = 0, length = 0;
    if (!range.compute(static_cast<py::ssize_t>(order.size()), &start, &stop, &step, &length)) {
        throw py::error_already_set();
    }
    if (step == 1) {
        const auto from = static_cast<std::uint64_t>(start);
        return slice(order, {from, from + static_cast<std::uint64_t>(length)}, py::none());
    }
    IndexArray positions(length);
    const std::span<std::int64_t> values = int64_span(positions);
    for (std::size_t j = 0; j < values.size(); ++j) {
        values[j] = start + static_cast<std::int64_t>(j) * step;
    }
    return in_bulk(order, take_in_bulk, positions, py::none(), "position");
}

std::string repr(const Permutation& order) {
    return "Permutation(" + std::to_string(order.size()) +
           ", seed=" + std::to_string(order.seed()) + ", epoch=" + std::to_string(order.epoch()) +
           ")";
}

OrderState state(const Permutation& order) {
    return py::make_tuple(Permutation::order_version, order.size(), order.seed(), order.epoch());
}

Permutation from_state(const OrderState& state) {
    if (state.size() != 4) {
        throw py::value_error("the pickled order holds " + std::to_string(state.size()) +
                              " numbers, expected 4");
    }
    const std::uint64_t version = uint64(state[0], "order_version");
    if (version != Permutation::order_version) {
        throw py::value_error(
            "the pickled order has order_version " + std::to_string(version) + ", expected " +
            std::to_string(Permutation::order_version) +
            ": it would give another order now; make it anew, or use the windeck it was made with");
    }
    return Permutation(order_size(state[1]), uint64(state[2], "seed"), uint64(state[3], "epoch"));
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
    A size, seed or epoch outside its range.
TypeError
    A size, seed or epoch that is not an integer.

Notes
-----
O(1) memory, and constant time per sample at any position. The order of a (size, seed, epoch) is the
same on every machine and in every later version (see ORDER_VERSION).

Examples
--------
>>> import windeck as wd
>>> order = wd.Permutation(10, seed=42, epoch=1)
>>> sorted(int(sample) for sample in order[:])
[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
>>> order.index(order[3])
3
)";

constexpr const char* about_slice = R"(Return the samples at positions start to stop, stop excluded.

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
    A start or stop outside [0, size].
ValueError
    A stop before start; an `out` with another shape, not contiguous or read-only.
TypeError
    An `out` with another dtype.
)";

constexpr const char* about_take = R"(Return the samples at the given positions.

Parameters
----------
positions : ndarray
    int64, shape (n,), each in [0, size). It must not change during the call.
out : ndarray, optional
    int64, shape (n,), contiguous, writeable and not overlapping `positions`; written to and
    returned.

Returns
-------
ndarray
    int64, shape (n,).

Raises
------
IndexError
    A position outside [0, size).
ValueError
    More than one dimension; an `out` with another shape, not contiguous, read-only or overlapping.
TypeError
    A dtype other than int64.
)";

constexpr const char* about_index =
    R"(Return the positions of the given samples, the inverse of `take`.

Parameters
----------
samples : ndarray
    int64, shape (n,), each in [0, size). It must not change during the call.
out : ndarray, optional
    As in `take`.

Returns
-------
ndarray
    int64, shape (n,).

Raises
------
IndexError, ValueError, TypeError
    As in `take`.
)";

/// The sample at positions[j] of the order of sizes[j], with the seed hash_words(seed, keys[j]).
IndexArray permute_keyed(py::handle sizes, py::handle keys, py::handle epochs, py::handle positions,
                         const IntegerLike& seed) {
    const Indices counts = index_array(sizes, "sizes");
    const Indices names = index_array(keys, "keys");
    const Indices numbers = index_array(epochs, "epochs");
    const Indices places = index_array(positions, "positions");
    const std::size_t n = places.values.size();
    if (counts.values.size() != n || names.values.size() != n || numbers.values.size() != n) {
        throw py::value_error("sizes, keys, epochs and positions must have one length");
    }
    const std::uint64_t first = absorb(0, uint64(seed.value, "seed"));
    IndexArray result(static_cast<py::ssize_t>(n));
    const std::span<std::int64_t> into = int64_span(result);
    bool good = true;
    {
        const GilRelease release;
        std::vector<std::uint64_t> seeds(n);
        for (std::size_t j = 0; j < n; ++j) {
            seeds[j] = absorb(first, static_cast<std::uint64_t>(names.values[j]));
            good = good && numbers.values[j] >= 0 && places.values[j] >= 0 &&
                   places.values[j] < counts.values[j];
        }
        if (good) permute_each(counts.values, seeds, numbers.values, places.values, into);
    }
    if (!good) throw py::index_error("a position is outside of its order, or an epoch negative");
    return result;
}

using RoundKeys = py::typing::Tuple<py::int_, py::typing::List<py::int_>>;

/// k, and the keys a_0, c_0, ..., a_5, c_5, f of permutation.hpp: each is below 2^63.
RoundKeys round_keys(const Permutation& order) {
    const Rounds& rounds = order.rounds();
    py::list keys;
    for (unsigned r = 0; r < Rounds::count; ++r) {
        keys.append(rounds.a[r]);
        keys.append(rounds.c[r]);
    }
    keys.append(rounds.post);
    return py::make_tuple(rounds.bits, keys);
}

}  // namespace

void bind_permutation(py::module_& m) {
    m.def("permute_keyed", &permute_keyed, py::arg("sizes"), py::arg("keys"), py::arg("epochs"),
          py::arg("positions"), py::kw_only(), py::arg("seed"),
          "Return Permutation(sizes[j], seed=hash_words(seed, keys[j]), epoch=epochs[j])"
          "[positions[j]] for each j.");
    m.attr("ORDER_VERSION") = Permutation::order_version;
    auto permutation = py::class_<Permutation>(m, "Permutation", about);
    m.def("round_keys", &round_keys, py::arg("order"),
          "Return the bits k of the domain of an order, and the keys of its rounds: the factor and "
          "the addend of each, and the last addend (see "
          "cpp/include/windeck/orders/permutation.hpp).");
    permutation
        .def(py::init(
                 [](const IntegerLike& size, const IntegerLike& seed, const IntegerLike& epoch) {
                     return Permutation(order_size(size.value), uint64(seed.value, "seed"),
                                        uint64(epoch.value, "epoch"));
                 }),
             py::arg("size"), py::kw_only(), py::arg("seed") = 0, py::arg("epoch") = 0)
        .def_property_readonly("size", &Permutation::size, "Number of samples.")
        .def_property_readonly("seed", &Permutation::seed, "The seed of the order.")
        .def_property_readonly("epoch", &Permutation::epoch, "The epoch of the order.")
        .def("__len__", &Permutation::size)
        .def("__iter__",
             [](const py::object& order) {
                 return py::reinterpret_steal<py::typing::Iterator<py::int_>>(
                     PySeqIter_New(order.ptr()));
             })
        // The most frequent overload is the first: an overload that fails costs as much as a call.
        .def(
            "__getitem__",
            [](const Permutation& order, const Position& position) {
                return order.at(index_in(position.value, order.size(), "position", order.size()));
            },
            py::arg("position"))
        .def("__getitem__", &sliced, py::arg("positions"))
        .def(
            "slice",
            [](const Permutation& order, const IntegerLike& start, const IntegerLike& stop,
               const py::object& out) {
                return slice(order, strict_range(start.value, stop.value, order.size()), out);
            },
            py::arg("start"), py::arg("stop"), py::arg("out") = py::none(), about_slice)
        .def(
            "take",
            [](const Permutation& order, const py::object& positions, const py::object& out) {
                return in_bulk(order, take_in_bulk, positions, out, "position");
            },
            py::arg("positions"), py::arg("out") = py::none(), about_take)
        .def(
            "index",
            [](const Permutation& order, const SingleIndex& sample) {
                return order.index_of(index_in(sample.value, order.size(), "sample"));
            },
            py::arg("sample"), "Return the position of a sample, the inverse of order[position].")
        .def(
            "index",
            [](const Permutation& order, const py::object& samples, const py::object& out) {
                return in_bulk(order, index_in_bulk, samples, out, "sample");
            },
            py::arg("samples"), py::arg("out") = py::none(), about_index)
        .def("__repr__", &repr)
        .def("__eq__",
             [](const Permutation& order, const py::object& other) {
                 return py::isinstance<Permutation>(other) &&
                        order == other.cast<const Permutation&>();
             })
        .def("__hash__", [](const Permutation& order) { return py::hash(state(order)); })
        .def(py::pickle(&state, &from_state));
}

}  // namespace windeck
