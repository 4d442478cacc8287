#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "elements_of.hpp"
#include "held.hpp"
#include "windeck/search.hpp"
#include "words.hpp"

namespace windeck {
namespace {

constexpr const char* doc = R"(Finds elements by value in the raw bytes of a tensor.

Parameters
----------
dtype : str
    As torch calls it: float64, float32, float16, bfloat16, float8_e4m3fn, ..., int8 to int64, uint8
    to uint64, bool, complex32, complex64, complex128.
ranges : sequence of (low, high)
    Numbers sought, ends included; float for floats and complex, int for integers and bool. A
    complex number is sought by its distance from `center`.
nan : bool
    Whether NaN is sought. A complex number with a NaN in it is NaN and at no distance.
center : complex
    See above; 0 for other dtypes.

Raises
------
TypeError, ValueError
    For an unknown dtype, bounds that are NaN, of another type or outside of 64 bits, a center that
    is not finite, or is not 0 where the dtype is not complex.

Notes
-----
May be used from several threads; `windeck.checkpoint.readers.where` makes ranges of conditions as text.

Examples
--------
>>> import numpy as np
>>> from windeck._core import Search
>>> large = Search("float32", [(-float("inf"), -3.0), (3.0, float("inf"))])
>>> positions, count = large.find(np.array([1, -5, 2, 3, np.nan], np.float32))
>>> positions.tolist(), count
([1, 3], 2)
)";

constexpr const char* find_doc = R"(The positions of what is sought.

Parameters
----------
buffer : bytes, memoryview, array or any contiguous buffer
    Little-endian elements, of any alignment.
limit : int, optional
    At most so many positions; None: all.
base : int
    The position of the first element.

Returns
-------
positions : int64[k]
    Ascending, of those found first.
count : int
    Of all that were found, also beyond the limit.

Raises
------
TypeError
    For what has no buffer.
ValueError
    For a strided buffer, bytes that are no whole elements, positions beyond 64 bits, a negative
    limit.

Notes
-----
O(n) time; memory for the positions. Other Python threads run meanwhile.
)";

std::vector<py::object> pair_of(py::handle item) {
    if (!py::isinstance<py::sequence>(item) || py::len(item) != 2) {
        throw py::type_error("ranges has an item of type " + type_name(item) +
                             ", expected a pair (low, high)");
    }
    const auto pair = py::reinterpret_borrow<py::sequence>(item);
    return {pair[0], pair[1]};
}

double bound_of(const py::object& value) {
    if (!PyFloat_Check(value.ptr()) && !PyLong_Check(value.ptr())) {
        throw py::type_error("a bound of ranges is of type " + type_name(value) +
                             ", expected a float");
    }
    const double found = PyFloat_AsDouble(value.ptr());
    if (found == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (std::isnan(found)) throw py::value_error("a bound of ranges is nan, expected a number");
    return found;
}

template <typename Number, typename Convert>
Ranges read(const py::sequence& ranges, Convert convert) {
    std::vector<Range<Number>> found;
    for (const py::handle item : ranges) {
        const auto pair = pair_of(item);
        found.push_back({convert(pair[0]), convert(pair[1])});
    }
    return found;
}

Ranges ranges_of(Element element, const py::sequence& ranges) {
    switch (kind_of(element)) {
        case ElementKind::whole:
            return read<std::int64_t>(ranges, [](const py::object& value) {
                return integer(value, "a bound of ranges");
            });
        case ElementKind::natural:
            return read<std::uint64_t>(
                ranges, [](const py::object& value) { return word(value, "a bound of ranges"); });
        default:
            return read<double>(ranges, bound_of);
    }
}

Search make(const std::string& dtype, const py::sequence& ranges, bool nan,
            std::complex<double> center) {
    const Element element = element_of(dtype);
    const bool complex = kind_of(element) == ElementKind::complex;
    if (!std::isfinite(center.real()) || !std::isfinite(center.imag()))
        throw py::value_error("center is not finite, expected a finite number");
    if (!complex && center != std::complex<double>())
        throw py::value_error("center is not 0, expected 0 for " + dtype);
    return {element, ranges_of(element, ranges), nan, center};
}

py::tuple find(const Search& search, const py::object& buffer, const py::object& limit,
               const Number& base) {
    constexpr auto most = std::numeric_limits<std::int64_t>::max();
    const std::int64_t room = limit.is_none() ? most : integer(limit, "limit", 0);
    const std::int64_t first = integer(base.value, "base", 0);
    const Held held(buffer);
    check_elements(held.bytes(), search.element(), first);
    std::vector<std::int64_t> positions;
    std::int64_t count = 0;
    {
        const py::gil_scoped_release unlocked;
        count = search.find(held.bytes(), room, first, positions);
    }
    py::array_t<std::int64_t> found(static_cast<py::ssize_t>(positions.size()));
    std::ranges::copy(positions, found.mutable_data());
    return py::make_tuple(found, count);
}

constexpr const char* reals_doc =
    R"(The values of raw elements of a float dtype as float64, exactly.

Parameters
----------
dtype : str
    A float, as torch calls it: NumPy knows neither bfloat16 nor those of 8 bits.
buffer : bytes, memoryview, array or any contiguous buffer
    Little-endian elements, of any alignment.

Returns
-------
float64[n]

Raises
------
TypeError
    For what has no buffer.
ValueError
    For a dtype that is no float, a strided buffer, bytes that are no whole elements.

Examples
--------
>>> from windeck._core import real_values
>>> real_values("float8_e4m3fn", b"\x38\x7e\x7f").tolist()
[1.0, 448.0, nan]
)";

py::array reals(const std::string& dtype, const py::object& buffer) {
    const Element element = element_of(dtype);
    if (kind_of(element) != ElementKind::real)
        throw py::value_error("dtype is '" + dtype + "', expected a float");
    const Held held(buffer);
    check_elements(held.bytes(), element, 0);
    const std::size_t count = held.bytes().size() / size_of(element);
    py::array_t<double> values(static_cast<py::ssize_t>(count));
    double* const out = values.mutable_data();
    const py::gil_scoped_release unlocked;
    read_reals(element, held.bytes().data(), count, out);
    return values;
}

}  // namespace

void bind_search(py::module_& m) {
    m.def("real_values", &reals, py::arg("dtype"), py::arg("buffer"), reals_doc);
    py::class_<Search>(m, "Search", doc)
        .def(py::init(&make), py::arg("dtype"), py::arg("ranges"), py::kw_only(),
             py::arg("nan") = false, py::arg("center") = std::complex<double>())
        .def("find", &find, py::arg("buffer"), py::kw_only(), py::arg("limit") = py::none(),
             py::arg("base") = 0, find_doc);
}

}  // namespace windeck
