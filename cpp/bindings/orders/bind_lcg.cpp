#include <pybind11/typing.h>

#include <mutex>

#include "base/gil.hpp"
#include "bindings.hpp"
#include "orders/checks.hpp"
#include "windeck/orders/lcg.hpp"

namespace windeck {
namespace {

using LcgState = py::typing::Tuple<py::int_, py::int_, py::int_, py::int_>;

/// An LCG with a lock: each draw changes it, and threads may share a Python object.
class SharedLcg {
  public:
    explicit SharedLcg(const Lcg& lcg) : lcg_(lcg) {}

    void draw(std::span<std::int64_t> out) {
        const std::lock_guard lock(mutex_);
        lcg_.draw(out);
    }

    void jump(std::uint64_t steps) {
        const std::lock_guard lock(mutex_);
        lcg_.jump(steps);
    }

    Lcg copy() const {
        const std::lock_guard lock(mutex_);
        return lcg_;
    }

  private:
    mutable std::mutex mutex_;
    Lcg lcg_;
};

std::unique_ptr<SharedLcg> make(py::handle size, py::handle multiplier, py::handle increment,
                                py::handle state) {
    return std::make_unique<SharedLcg>(Lcg(order_size(size), uint64(multiplier, "multiplier"),
                                           uint64(increment, "increment"), uint64(state, "state")));
}

IndexArray draw(SharedLcg& lcg, const IntegerLike& count, const py::object& out) {
    IndexArray result = int64_out(out, integer(count.value, "count", 0), "out");
    const std::span<std::int64_t> into = int64_span(result);
    // The lock is taken without the GIL, so that neither waits for the other.
    const GilRelease release;
    lcg.draw(into);
    return result;
}

/// Accepts any integer: the period divides 2^64, so steps are taken modulo 2^64, also backwards.
void jump(SharedLcg& lcg, const IntegerLike& steps) {
    const py::object number = index_value(steps.value, "steps");
    const std::uint64_t ahead = PyLong_AsUnsignedLongLongMask(number.ptr());
    const GilRelease release;
    lcg.jump(ahead);
}

LcgState numbers(const SharedLcg& shared) {
    const Lcg lcg = shared.copy();
    return py::make_tuple(lcg.size(), lcg.multiplier(), lcg.increment(), lcg.state());
}

std::string repr(const SharedLcg& shared) {
    const Lcg lcg = shared.copy();
    return "LCG(" + std::to_string(lcg.size()) +
           ", multiplier=" + std::to_string(lcg.multiplier()) +
           ", increment=" + std::to_string(lcg.increment()) +
           ", state=" + std::to_string(lcg.state()) + ")";
}

std::unique_ptr<SharedLcg> from_numbers(const LcgState& numbers) {
    if (numbers.size() != 4) {
        throw py::value_error("the pickled LCG holds " + std::to_string(numbers.size()) +
                              " numbers, expected 4");
    }
    return make(numbers[0], numbers[1], numbers[2], numbers[3]);
}

constexpr const char* about = R"(The classic full-period linear congruential generator.

With m the least power of two >= size, a raw step is state = (multiplier * state + increment) % m.
`draw` returns the state after each step and skips states >= size, so m raw steps give each value of
[0, size) exactly once.

It is a poor shuffle, provided for jobs whose order was made with it: with increment
2 * (rank + seed) + 1 and state seed + rank it gives the document order of fms-fsdp. To shuffle, use
`Permutation`.

Parameters
----------
size : int
    1 to 2**63 - 1.
multiplier : int
    1 modulo 4, which a full period requires.
increment : int
    Odd, which a full period requires.
state : int
    The initial state, taken modulo m.

Raises
------
ValueError
    A number out of its range.
TypeError
    An argument that is not an integer.

Examples
--------
>>> import windeck as wd
>>> lcg = wd.LCG(10)
>>> lcg.draw(4).tolist(), lcg.state
([1, 6, 2, 8], 8)
>>> lcg.jump(-1)  # raw steps: 11 came before 8 and was skipped
>>> lcg.state
11
)";

constexpr const char* about_draw = R"(Return the next `count` values, int64 of shape (count,).

`state` is the last of them afterwards. `out`, if given, is an int64 array of that shape, contiguous
and writeable; it is written to and returned.

Raises
------
ValueError
    A negative count; an `out` with another shape, not contiguous or read-only.
TypeError
    A count that is not an integer; an `out` with another dtype.
)";

constexpr const char* about_jump = R"(Advance the state by `steps` raw steps, backwards if negative.

Skipped values count as steps. O(log m) time (Brown 1994).
)";

}  // namespace

void bind_lcg(py::module_& m) {
    py::class_<SharedLcg>(m, "LCG", about)
        .def(py::init([](const IntegerLike& size, const IntegerLike& multiplier,
                         const IntegerLike& increment, const IntegerLike& state) {
                 return make(size.value, multiplier.value, increment.value, state.value);
             }),
             py::arg("size"), py::kw_only(), py::arg("multiplier") = 5, py::arg("increment") = 1,
             py::arg("state") = 0)
        .def_property_readonly(
            "size", [](const SharedLcg& lcg) { return lcg.copy().size(); },
            "Values drawn are in [0, size).")
        .def_property_readonly(
            "multiplier", [](const SharedLcg& lcg) { return lcg.copy().multiplier(); },
            "The multiplier.")
        .def_property_readonly(
            "increment", [](const SharedLcg& lcg) { return lcg.copy().increment(); },
            "The increment.")
        .def_property_readonly(
            "state", [](const SharedLcg& lcg) { return lcg.copy().state(); },
            "The state after the last draw or jump; save it to continue the sequence.")
        .def_property_readonly(
            "period", [](const SharedLcg& lcg) { return lcg.copy().mask() + 1; },
            "m, the number of raw steps after which the sequence repeats.")
        .def("draw", &draw, py::arg("count"), py::arg("out") = py::none(), about_draw)
        .def("jump", &jump, py::arg("steps"), about_jump)
        .def("__repr__", &repr)
        .def(py::pickle(&numbers, &from_numbers));
}

}  // namespace windeck
