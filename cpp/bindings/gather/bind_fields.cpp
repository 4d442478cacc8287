#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/arrays.hpp"
#include "base/gil.hpp"
#include "gather/fields.hpp"

namespace windeck {
namespace {

constexpr const char* column_doc = R"(A column to gather from, read in place.

Parameters
----------
values : ndarray of shape (rows,)
    float64, float32, float16, any integer type or bool, with any stride; uint16 for bfloat16.
    The column holds a reference to it.
validity : uint8[n], optional
    Arrow validity bitmap, least significant bit first: row i is present where bit
    i + validity_offset is 1. Values of absent rows are ignored.
validity_offset : int
    The bit of row 0.
nan_is_missing : bool
    Whether NaN is a missing value in fields with a mask or `fill_nan`.
name : str
    The name in error messages.
dtype : str, optional
    "bfloat16" for uint16 values that are the bits of bfloat16.

Raises
------
TypeError
    A value that is not an array, or has another dtype.
ValueError
    More than one dimension, or a bitmap that is too short.
)";

constexpr const char* field_doc =
    R"(The description of one array of a batch: its columns, steps and dtype.

Parameters
----------
name : str
    The key in the batch; a field with a mask also gives "<name>_mask".
columns : sequence of Column
    The channels, in order.
step_spans : sequence of (offset, length)
    The steps of each step span are the rows anchor + offset + j * dilation, 0 <= j < length.
dilation : int
    Rows from one step to the next, 1 or more.
layout : str
    "btc" (batch, time, channel), "bct", "bt" (one column), "bc" (one step) or "b" (one of both).
dtype : str
    The dtype of the values: float64, float32, float16, bfloat16 (as uint16), an integer type or
    bool. A column of this dtype that is not scaled is copied unchanged.
mask : bool
    Whether to make a bool array of the same shape, True where a value is present.
fill : float
    The value of rows outside the series of the window, and of missing values.
scale, shift : float64[C] or float64[series, C], optional
    The result is value * scale + shift: the product and the sum are each rounded to float64, and
    the sum to `dtype`. Missing values are not scaled.
anchor : str
    "window" for the start row of the window, "series" for the first row of its series.
fill_nan : bool
    Whether NaN becomes `fill` in a field without a mask too.

Raises
------
TypeError, ValueError
    Arguments that are not valid, or do not fit each other; some are checked by Gather.
)";

DType column_dtype(const py::array& values, py::handle wanted, const std::string& column) {
    const auto found = dtype_of(values.dtype());
    if (!found) {
        throw py::type_error("column '" + column + "' has dtype " + text(values.dtype()) +
                             ", expected floats, integers or bool in native byte order");
    }
    if (wanted.is_none()) return *found;
    const auto dtype = dtype_named(text(wanted));
    if (dtype && storage_of(*dtype) == *found) return *dtype;
    throw py::type_error("column '" + column + "' has dtype " + text(values.dtype()) +
                         ", which is not " + text(wanted) +
                         (dtype ? std::string("; expected ") + name(storage_of(*dtype)) : ""));
}

PyColumn make_column(py::handle values, py::handle validity, py::handle validity_offset,
                     bool nan_is_missing, const std::string& name, py::handle dtype) {
    if (!py::isinstance<py::array>(values)) {
        throw py::type_error("column '" + name + "' is of type " + type_name(values) +
                             ", expected an array of one dimension");
    }
    const auto array = py::reinterpret_borrow<py::array>(values);
    if (array.ndim() != 1) {
        throw py::value_error("column '" + name + "' has shape " + shape_text(shape_of(array)) +
                              ", expected one dimension");
    }
    PyColumn out;
    out.values = array;
    out.column.name = name;
    out.column.data = static_cast<const std::byte*>(array.data());
    out.column.rows = array.size();
    out.column.stride = array.strides(0);
    out.column.dtype = column_dtype(array, dtype, name);
    out.column.nan_is_missing = nan_is_missing;
    if (validity.is_none()) return out;
    const Bytes bits = byte_array(validity, "validity of column '" + name + "'");
    const auto room = static_cast<std::int64_t>(bits.values.size()) * 8;
    out.column.validity_offset = integer(validity_offset, "validity_offset", 0);
    if (out.column.validity_offset > room || room - out.column.validity_offset < out.column.rows) {
        throw py::value_error("validity of column '" + name + "' has " + std::to_string(room) +
                              " bits, expected at least " + std::to_string(out.column.rows) +
                              " from bit " + std::to_string(out.column.validity_offset) + " on");
    }
    out.column.validity = bits.values.data();
    out.validity = bits.owner;
    return out;
}

template <typename T, std::size_t N>
T choose(const std::string& found, const char* what,
         const std::pair<const char*, T> (&choices)[N]) {
    std::string names;
    for (const auto& [key, value] : choices) {
        if (found == key) return value;
        names += (names.empty() ? "'" : ", '") + std::string(key) + "'";
    }
    throw py::value_error(std::string(what) + " is '" + found + "', expected one of " + names);
}

Coefficients coefficients(py::handle value, std::size_t columns, const std::string& name) {
    if (value.is_none()) return {};
    if (!py::isinstance<py::array>(value)) {
        throw py::type_error(name + " is of type " + type_name(value) +
                             ", expected a float64 array");
    }
    const auto array = py::reinterpret_borrow<py::array>(value);
    if (!is_native(array.dtype(), DType::float64)) {
        throw py::type_error(name + " has dtype " + text(array.dtype()) + ", expected float64");
    }
    const auto last = static_cast<py::ssize_t>(columns);
    if (array.ndim() < 1 || array.ndim() > 2 || array.shape(array.ndim() - 1) != last) {
        throw py::value_error(name + " has shape " + shape_text(shape_of(array)) +
                              ", expected (columns,) or (series, columns) with " +
                              std::to_string(columns) + " columns");
    }
    const auto flat = py::array_t<double, py::array::c_style | py::array::forcecast>(array);
    Coefficients out;
    out.values.assign(flat.data(), flat.data() + flat.size());
    out.per_series = array.ndim() == 2;
    if (out.values.empty()) {
        throw py::value_error(name + " has shape " + shape_text(shape_of(array)) +
                              ", expected an entry a column");
    }
    return out;
}

std::vector<StepSpan> step_spans_of(py::handle value) {
    std::vector<StepSpan> step_spans;
    for (const py::handle item : py::iter(value)) {
        if (!py::isinstance<py::sequence>(item) || py::len(item) != 2) {
            throw py::type_error("step_spans holds " + text(item) +
                                 ", expected pairs (offset, length)");
        }
        const auto pair = py::reinterpret_borrow<py::sequence>(item);
        step_spans.push_back({integer(py::object(pair[0]), "offset of a step span"),
                              integer(py::object(pair[1]), "length of a step span", 0)});
    }
    return step_spans;
}

double fill_of(py::handle value, DType dtype) {
    if (PyFloat_Check(value.ptr()) == 0 && PyIndex_Check(value.ptr()) == 0) {
        throw py::type_error("fill is of type " + type_name(value) + ", expected a number");
    }
    const double fill = PyFloat_AsDouble(value.ptr());
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (!is_float(dtype) && !value.equal(py::float_(fill))) {
        throw py::value_error("fill is " + text(value) +
                              ", expected an integer that float64 holds exactly");
    }
    return fill;
}

PyField make_field(const std::string& name, py::handle columns, py::handle step_spans,
                   py::handle dilation, const std::string& layout, const std::string& dtype,
                   bool mask, py::handle fill, py::handle scale, py::handle shift,
                   const std::string& anchor, bool fill_nan) {
    PyField out;
    out.spec.name = name;
    const py::tuple kept(py::reinterpret_borrow<py::object>(columns));
    for (const py::handle column : kept) {
        if (!py::isinstance<PyColumn>(column)) {
            throw py::type_error("columns holds an object of type " + type_name(column) +
                                 ", expected Column");
        }
        out.spec.columns.push_back(column.cast<const PyColumn&>().column);
    }
    out.columns = kept;
    out.spec.step_spans = step_spans_of(step_spans);
    out.spec.dilation = integer(dilation, "dilation", 1);
    out.spec.layout = choose<Layout>(layout, "layout",
                                     {{"btc", Layout::btc},
                                      {"bct", Layout::bct},
                                      {"bt", Layout::bt},
                                      {"bc", Layout::bc},
                                      {"b", Layout::b}});
    out.spec.anchor =
        choose<Anchor>(anchor, "anchor", {{"window", Anchor::window}, {"series", Anchor::series}});
    const auto type = dtype_named(dtype);
    if (!type) {
        std::string names;
        for (const DTypeInfo& known : dtypes)
            names += std::string(" ") + known.name;
        throw py::value_error("dtype is '" + dtype + "', expected one of" + names);
    }
    out.spec.dtype = *type;
    out.spec.mask = mask;
    out.spec.fill_nan = fill_nan;
    out.spec.fill = fill_of(fill, *type);
    out.spec.scale = coefficients(scale, out.spec.columns.size(), "scale");
    out.spec.shift = coefficients(shift, out.spec.columns.size(), "shift");
    return out;
}

}  // namespace

void bind_fields(py::module_& m) {
    py::class_<PyColumn>(m, "Column", column_doc)
        .def(py::init(&make_column), py::arg("values"), py::kw_only(),
             py::arg("validity") = py::none(), py::arg("validity_offset") = 0,
             py::arg("nan_is_missing") = true, py::arg("name") = "", py::arg("dtype") = py::none())
        .def(
            "__len__", [](const PyColumn& self) { return self.column.rows; }, "The number of rows.")
        .def(
            "count_missing",
            [](const PyColumn& self) {
                const GilRelease unlocked;
                return count_missing(self.column);
            },
            "Return the number of rows that are null, or NaN where NaN is missing. O(rows) time, "
            "O(1) memory.")
        .def_property_readonly(
            "name", [](const PyColumn& self) { return self.column.name; },
            "The name in error messages.")
        .def_property_readonly(
            "dtype", [](const PyColumn& self) { return name(self.column.dtype); },
            "The name of the dtype of the values.");

    py::class_<PyField>(m, "Field", field_doc)
        .def(py::init(&make_field), py::arg("name"), py::arg("columns"), py::kw_only(),
             py::arg("step_spans"), py::arg("dilation") = 1, py::arg("layout") = "btc",
             py::arg("dtype") = name(DType::float32), py::arg("mask") = false,
             py::arg("fill") = 0.0, py::arg("scale") = py::none(), py::arg("shift") = py::none(),
             py::arg("anchor") = "window", py::arg("fill_nan") = false)
        .def_property_readonly(
            "name", [](const PyField& self) { return self.spec.name; }, "The key in the batch.");
}

}  // namespace windeck
