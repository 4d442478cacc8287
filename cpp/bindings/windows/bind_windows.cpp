#include <optional>
#include <utility>

#include "base/arrays.hpp"
#include "base/gil.hpp"
#include "bindings.hpp"
#include "windeck/windows/windows.hpp"

namespace windeck {
namespace {

constexpr const char* class_doc =
    R"(WindowIndex(first, count, stride, *, series=None, keep=None)

An index of windows in window runs: candidate j of window run r starts at row first[r] + j * stride.

Parameters
----------
first : int64[R]
    The start row of the first candidate of each window run; may be before its series.
count : int64[R]
    The number of candidates in each window run, 0 or more.
stride : int
    The rows from one candidate to the next, 1 or more.
series : int64[R], optional
    The series of each window run; by default window run r is series r.
keep : uint8[ceil(sum(count) / 8)], optional
    Bitmap over all candidates in order, least significant bit first: 1 keeps the candidate.

Raises
------
TypeError
    An array with another dtype.
ValueError
    A stride below 1, a negative count or series, lengths that differ, a window in two window runs.
OverflowError
    Rows or a number of windows beyond 2**63 - 1.

Notes
-----
O(R) memory, and 1.25 bits per candidate with `keep`. Immutable and thread-safe.

Examples
--------
>>> import numpy as np
>>> from windeck._core import WindowIndex
>>> index = WindowIndex(np.array([0, 100]), np.array([3, 2]), 10)
>>> len(index)
5
>>> [list(map(int, a)) for a in index.locate(np.array([2, 3]))]
[[0, 1], [20, 100]]
)";

WindowIndex make(py::handle first, py::handle count, py::handle stride, py::handle series,
                 py::handle keep) {
    const Indices firsts = index_array(first, "first");
    const Indices counts = index_array(count, "count");
    const std::int64_t step = integer(stride, "stride", 1);
    std::optional<Indices> numbers;
    if (!series.is_none()) {
        numbers = index_array(series, "series");
        if (numbers->values.size() != firsts.values.size()) {
            throw py::value_error("series has " + std::to_string(numbers->values.size()) +
                                  " entries, expected " + std::to_string(firsts.values.size()) +
                                  ", one for every window run");
        }
    }
    std::optional<Bytes> bitmap;
    if (!keep.is_none()) bitmap = byte_array(keep, "keep");
    const auto series_span = numbers ? numbers->values : std::span<const std::int64_t>();
    const auto keep_span = bitmap ? std::optional(bitmap->values) : std::nullopt;
    const GilRelease unlocked;  // a bitmap may hold billions of bits
    return WindowIndex(firsts.values, counts.values, step, series_span, keep_span);
}

py::tuple locate(const WindowIndex& self, py::handle indices) {
    const Indices wanted = index_array(indices, "indices");
    const auto size = static_cast<py::ssize_t>(wanted.values.size());
    py::array series = int64_out(py::none(), size, "series");
    py::array rows = int64_out(py::none(), size, "rows");
    const auto series_out = int64_span(series);
    const auto rows_out = int64_span(rows);
    {
        const GilRelease unlocked;
        self.check(wanted.values);
        self.locate(wanted.values, series_out.data(), rows_out.data());
    }
    return py::make_tuple(std::move(series), std::move(rows));
}

py::tuple slice(const WindowIndex& self, py::handle start, py::handle stop) {
    const std::int64_t from = integer(start, "start");
    const std::int64_t to = integer(stop, "stop");
    if (from < 0 || to > self.size() || from > to) {
        throw py::index_error("slice [" + std::to_string(from) + ", " + std::to_string(to) +
                              ") is out of range for " + std::to_string(self.size()) + " windows");
    }
    py::array series = int64_out(py::none(), to - from, "series");
    py::array rows = int64_out(py::none(), to - from, "rows");
    const auto series_out = int64_span(series);
    const auto rows_out = int64_span(rows);
    {
        const GilRelease unlocked;
        self.slice(from, to - from, series_out.data(), rows_out.data());
    }
    return py::make_tuple(std::move(series), std::move(rows));
}

py::array index_of(const WindowIndex& self, py::handle series, py::handle rows) {
    const Indices numbers = index_array(series, "series");
    const Indices starts = index_array(rows, "rows");
    if (numbers.values.size() != starts.values.size()) {
        throw py::value_error("series has " + std::to_string(numbers.values.size()) +
                              " entries, expected " + std::to_string(starts.values.size()) +
                              ", as many as rows");
    }
    py::array found =
        int64_out(py::none(), static_cast<py::ssize_t>(starts.values.size()), "found");
    const auto out = int64_span(found);
    {
        const GilRelease unlocked;
        for (std::size_t i = 0; i < out.size(); ++i) {
            out[i] = self.index_of(numbers.values[i], starts.values[i]);
        }
    }
    return found;
}

}  // namespace

void bind_windows(py::module_& m) {
    py::class_<WindowIndex>(m, "WindowIndex", class_doc)
        .def(py::init(&make), py::arg("first"), py::arg("count"), py::arg("stride"), py::kw_only(),
             py::arg("series") = py::none(), py::arg("keep") = py::none())
        .def(
            "__len__",
            [](const WindowIndex& self) { return static_cast<std::size_t>(self.size()); },
            "The number of windows.")
        .def_property_readonly("size", &WindowIndex::size, "The number of windows.")
        .def("locate", &locate, py::arg("indices"),
             "Return the series and the start row of each window, int64[n] each. IndexError for an "
             "index outside [0, len).")
        .def("slice", &slice, py::arg("start"), py::arg("stop"),
             "Return the series and the start rows of the windows [start, stop), int64 each.")
        .def("index_of", &index_of, py::arg("series"), py::arg("rows"),
             "Return the window that starts at each row of each series, int64[n]; -1 for none. The "
             "inverse of `locate`.")
        .def("__repr__", [](const WindowIndex& self) {
            return "WindowIndex(" + std::to_string(self.size()) + " windows)";
        });
}

}  // namespace windeck
