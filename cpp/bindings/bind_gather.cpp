#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "windeck/gather.hpp"
#include "windeck/parallel.hpp"
#include "windeck/pool.hpp"

namespace windeck {
namespace {

// ---- Column ------------------------------------------------------------------------------------

/// A column and the arrays it looks into.
struct PyColumn {
    Column column;
    py::object values;
    py::object validity;
};

DType dtype_of(const py::array& values, py::handle wanted, const std::string& column) {
    const auto found = dtype_named(text(values.dtype()));
    if (!found) {
        throw py::type_error("column '" + column + "' has dtype " + text(values.dtype()) +
                             ", expected floats, integers or bool in native byte order");
    }
    if (wanted.is_none()) return *found;
    if (text(wanted) == "bfloat16" && *found == DType::uint16) return DType::bfloat16;
    if (text(wanted) == name(*found)) return *found;
    throw py::type_error("column '" + column + "' has dtype " + text(values.dtype()) +
                         ", which is not " + text(wanted) +
                         " (bfloat16 travels as uint16, others as themselves)");
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
    out.column.dtype = dtype_of(array, dtype, name);
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

// ---- Field -------------------------------------------------------------------------------------

struct PyField {
    FieldSpec spec;
    py::object columns;  // keeps the columns' arrays
};

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
    if (!is_native(array.dtype(), 'f', sizeof(double))) {
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

std::vector<Segment> segments_of(py::handle value) {
    std::vector<Segment> segments;
    for (const py::handle item : py::iter(value)) {
        if (!py::isinstance<py::sequence>(item) || py::len(item) != 2) {
            throw py::type_error("segments holds " + text(item) +
                                 ", expected pairs (offset, length)");
        }
        const auto pair = py::reinterpret_borrow<py::sequence>(item);
        segments.push_back({integer(py::object(pair[0]), "offset of a segment"),
                            integer(py::object(pair[1]), "length of a segment", 0)});
    }
    return segments;
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

PyField make_field(const std::string& name, py::handle columns, py::handle segments,
                   py::handle dilation, const std::string& layout, const std::string& dtype,
                   bool mask, py::handle fill, py::handle scale, py::handle shift,
                   const std::string& anchor) {
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
    out.spec.segments = segments_of(segments);
    out.spec.dilation = integer(dilation, "dilation", 1);
    out.spec.layout = choose<Layout>(
        layout, "layout",
        {{"btc", Layout::btc}, {"bct", Layout::bct}, {"bt", Layout::bt}, {"bc", Layout::bc}});
    out.spec.anchor =
        choose<Anchor>(anchor, "anchor", {{"window", Anchor::window}, {"series", Anchor::series}});
    const auto type = dtype_named(dtype);
    if (!type) {
        throw py::value_error("dtype is '" + dtype +
                              "', expected float64, float32, float16, bfloat16, int8 to int64, "
                              "uint8 to uint64 or bool");
    }
    out.spec.dtype = *type;
    out.spec.mask = mask;
    out.spec.fill = fill_of(fill, *type);
    out.spec.scale = coefficients(scale, out.spec.columns.size(), "scale");
    out.spec.shift = coefficients(shift, out.spec.columns.size(), "shift");
    return out;
}

// ---- Gather ------------------------------------------------------------------------------------

/// The Python type of a field's values: bfloat16 travels as uint16.
py::dtype numpy_dtype(DType dtype) {
    return py::dtype(std::string(dtype == DType::bfloat16 ? "uint16" : name(dtype)));
}

/// One array of the batch.
struct Part {
    std::string key;
    py::dtype dtype;
    std::vector<py::ssize_t> shape;  // the first entry, the batch, is filled in a call
    std::size_t window_bytes;
};

std::vector<py::ssize_t> shape_for(const FieldSpec& spec, std::int64_t steps) {
    const auto columns = static_cast<py::ssize_t>(spec.columns.size());
    switch (spec.layout) {
        case Layout::btc:
            return {0, steps, columns};
        case Layout::bct:
            return {0, columns, steps};
        case Layout::bt:
            return {0, steps};
        default:
            return {0, columns};
    }
}

class PyGather {
  public:
    PyGather(py::object index, py::handle bounds, py::handle fields)
        : index_(std::move(index)), kept_(py::reinterpret_borrow<py::object>(fields)) {
        std::vector<FieldSpec> specs;
        for (const py::handle field : kept_) {
            if (!py::isinstance<PyField>(field)) {
                throw py::type_error("fields holds an object of type " + type_name(field) +
                                     ", expected Field");
            }
            specs.push_back(field.cast<const PyField&>().spec);
        }
        const Indices offsets = index_array(bounds, "bounds");
        // The Python object keeps the index alive.
        const auto& windows = index_.cast<const WindowIndex&>();
        gather_ = std::make_unique<Gather>(
            std::shared_ptr<const WindowIndex>(std::shared_ptr<void>(), &windows),
            std::vector<std::int64_t>(offsets.values.begin(), offsets.values.end()),
            std::move(specs));
        lay_out();
    }

    py::dict gather(py::handle indices, py::handle out, py::handle threads) const {
        const Indices wanted = index_array(indices, "indices");
        const int crew = threads.is_none() ? default_threads()
                                           : static_cast<int>(integer(threads, "threads", 1, 1024));
        const auto batch = static_cast<py::ssize_t>(wanted.values.size());
        std::vector<py::array> arrays = out.is_none() ? fresh(batch) : given(out, batch, wanted);

        // Everything the threads read is a C++ value from here on.
        std::vector<FieldOut> outs;
        std::size_t next = 0;
        for (const FieldSpec& spec : gather_->fields()) {
            FieldOut field;
            field.values = static_cast<std::byte*>(arrays[next++].mutable_data());
            if (spec.mask) field.mask = static_cast<std::uint8_t*>(arrays[next++].mutable_data());
            outs.push_back(field);
        }
        const auto series = int64_span(arrays[next]);
        const auto starts = int64_span(arrays[next + 1]);
        {
            const py::gil_scoped_release unlocked;
            gather_->run(wanted.values, outs, series.data(), starts.data(), crew);
        }
        py::dict result;
        for (std::size_t i = 0; i < arrays.size(); ++i)
            result[keys_[i]] = std::move(arrays[i]);
        return result;
    }

    std::size_t size() const { return static_cast<std::size_t>(gather_->index().size()); }

  private:
    void lay_out() {
        const auto& specs = gather_->fields();
        for (std::size_t f = 0; f < specs.size(); ++f) {
            const std::int64_t steps = gather_->steps(f);
            const auto values = static_cast<std::size_t>(steps) * specs[f].columns.size();
            const auto shape = shape_for(specs[f], steps);
            parts_.push_back({specs[f].name, numpy_dtype(specs[f].dtype), shape,
                              values * static_cast<std::size_t>(size_of(specs[f].dtype))});
            if (specs[f].mask) {
                parts_.push_back(
                    {specs[f].name + "_mask", numpy_dtype(DType::boolean), shape, values});
            }
        }
        for (const char* key : {"series_id", "start"}) {
            parts_.push_back({key, numpy_dtype(DType::int64), {0}, sizeof(std::int64_t)});
        }
        for (const Part& part : parts_)
            keys_.emplace_back(part.key);
    }

    static std::vector<py::ssize_t> shape_with(const Part& part, py::ssize_t batch) {
        std::vector<py::ssize_t> shape = part.shape;
        shape.front() = batch;
        return shape;
    }

    /// The bytes of a batch, every array aligned.
    std::size_t batch_bytes(std::size_t batch) const {
        std::size_t total = 0;
        for (const Part& part : parts_) {
            std::size_t bytes = 0;
            if (__builtin_mul_overflow(part.window_bytes, batch, &bytes) ||
                bytes > PTRDIFF_MAX / 2 ||
                __builtin_add_overflow(total, aligned_size(bytes), &total)) {
                throw std::bad_alloc();
            }
        }
        return total;
    }

    /// Arrays on one slab, which goes back to the pool when the last of them is gone.
    std::vector<py::array> fresh(py::ssize_t batch) const {
        const auto windows = static_cast<std::size_t>(batch);
        Slab* const slab = take_slab(batch_bytes(windows));
        py::capsule owner;
        try {
            owner = py::capsule(slab, [](void* held) { give_slab(static_cast<Slab*>(held)); });
        } catch (...) {
            give_slab(slab);
            throw;
        }
        std::vector<py::array> arrays;
        std::byte* data = slab->data;
        for (const Part& part : parts_) {
            arrays.emplace_back(part.dtype, shape_with(part, batch), std::vector<py::ssize_t>(),
                                data, owner);
            data += aligned_size(part.window_bytes * windows);
        }
        return arrays;
    }

    /// The arrays of `out`, every one checked before any is written to.
    std::vector<py::array> given(py::handle out, py::ssize_t batch, const Indices& indices) const {
        if (!py::isinstance<py::dict>(out)) {
            throw py::type_error("out is of type " + type_name(out) +
                                 ", expected a dict of arrays");
        }
        const auto dict = py::reinterpret_borrow<py::dict>(out);
        std::vector<py::array> arrays;
        std::vector<Extent> written;
        for (std::size_t i = 0; i < parts_.size(); ++i) {
            const std::string what = "out['" + parts_[i].key + "']";
            if (!dict.contains(keys_[i])) {
                throw py::key_error(what + " is missing, expected an array for every key");
            }
            arrays.push_back(
                out_array(dict[keys_[i]], parts_[i].dtype, shape_with(parts_[i], batch), what));
            written.push_back(extent(arrays.back(), what));
        }
        for (const auto& [key, value] : dict) {
            const auto same = [&](const py::str& mine) { return mine.equal(key); };
            if (std::ranges::none_of(keys_, same)) {
                throw py::key_error("out holds the key '" + text(key) +
                                    "', which the batch does not have");
            }
        }
        std::vector<Extent> read{extent(indices.owner, "indices")};
        for (const py::handle field : kept_) {
            for (const py::handle column :
                 py::reinterpret_borrow<py::tuple>(field.cast<const PyField&>().columns)) {
                const auto& held = column.cast<const PyColumn&>();
                read.push_back(extent(py::reinterpret_borrow<py::array>(held.values),
                                      "column '" + held.column.name + "'"));
                if (held.validity) {
                    read.push_back(extent(py::reinterpret_borrow<py::array>(held.validity),
                                          "validity of column '" + held.column.name + "'"));
                }
            }
        }
        require_disjoint(std::move(written), read);
        return arrays;
    }

    py::object index_;
    py::tuple kept_;  // the fields
    std::unique_ptr<Gather> gather_;
    std::vector<Part> parts_;
    std::vector<py::str> keys_;
};

}  // namespace

void bind_gather(py::module_& m) {
    py::class_<PyColumn>(m, "Column",
                         "Column(values, *, validity=None, validity_offset=0, nan_is_missing=True, "
                         "name='', dtype=None)\n\nA one-dimensional array of any stride, read in "
                         "place and kept alive. `validity` is an Arrow bitmap.")
        .def(py::init(&make_column), py::arg("values"), py::kw_only(),
             py::arg("validity") = py::none(), py::arg("validity_offset") = 0,
             py::arg("nan_is_missing") = true, py::arg("name") = "", py::arg("dtype") = py::none())
        .def("__len__", [](const PyColumn& self) { return self.column.rows; })
        .def_property_readonly("name", [](const PyColumn& self) { return self.column.name; })
        .def_property_readonly(
            "dtype", [](const PyColumn& self) { return std::string(name(self.column.dtype)); });

    py::class_<PyField>(m, "Field", "One array of a batch: which columns and steps, and how.")
        .def(py::init(&make_field), py::arg("name"), py::arg("columns"), py::kw_only(),
             py::arg("segments"), py::arg("dilation") = 1, py::arg("layout") = "btc",
             py::arg("dtype") = "float32", py::arg("mask") = false, py::arg("fill") = 0.0,
             py::arg("scale") = py::none(), py::arg("shift") = py::none(),
             py::arg("anchor") = "window")
        .def_property_readonly("name", [](const PyField& self) { return self.spec.name; });

    py::class_<PyGather>(m, "Gather", "Makes batches of windows; see gather.")
        .def(py::init([](const py::object& index, py::handle bounds, py::handle fields) {
                 if (!py::isinstance<WindowIndex>(index)) {
                     throw py::type_error("index is of type " + type_name(index) +
                                          ", expected WindowIndex");
                 }
                 return std::make_unique<PyGather>(index, bounds, fields);
             }),
             py::arg("index"), py::arg("bounds"), py::arg("fields"))
        .def("__len__", &PyGather::size)
        .def("gather", &PyGather::gather, py::arg("indices"), py::kw_only(),
             py::arg("out") = py::none(), py::arg("threads") = 1,
             "gather(indices: int64[n], *, out=None, threads=1) -> dict of arrays");
}

}  // namespace windeck
