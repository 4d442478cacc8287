#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/arrays.hpp"
#include "base/batch.hpp"
#include "base/gil.hpp"
#include "bindings.hpp"
#include "gather/fields.hpp"
#include "windeck/gather/gather.hpp"
#include "windeck/orders/permutation.hpp"

namespace windeck {
namespace {

constexpr const char* gather_doc = R"(A gather of windows of columns into batches.

Parameters
----------
index : WindowIndex
    The windows to choose from.
bounds : int64[S + 1]
    Series s has the rows bounds[s] to bounds[s + 1].
fields : sequence of Field
    The arrays of a batch.
index_keys : sequence of str
    Which of "series_id" and "start" a batch has.

Raises
------
TypeError, ValueError
    Bounds that decrease or exceed a column, a key given twice, a field that is not valid.

Notes
-----
Immutable and thread-safe. Holds references to the index, the fields and the columns.

Examples
--------
>>> import numpy as np
>>> from windeck._core import Column, Field, Gather, WindowIndex
>>> load = Column(np.arange(6.0))
>>> index = WindowIndex(np.array([0]), np.array([6]), 1)
>>> past = Field("past", [load], step_spans=[(0, 2)], layout="bt", mask=True, fill=-1)
>>> batch = Gather(index, np.array([0, 6]), [past]).gather([2, 5])
>>> batch["past"].tolist(), batch["past_mask"].tolist()
([[2.0, 3.0], [5.0, -1.0]], [[True, True], [True, False]])
>>> batch["start"].tolist()
[2, 5]
)";

constexpr const char* call_doc = R"(Return the batch of the given windows.

Parameters
----------
indices : int64[n]
    Numbers of windows, in any order; repeats are allowed.
out : dict of ndarray, optional
    Arrays to write into, one for every key, with exactly the dtypes and shapes of the batch,
    C-contiguous, aligned and writeable; they must not overlap each other or the columns. By default
    the arrays are new, in one slab of the pool, which is reused after the last of them is deleted.
threads : int, optional
    The number of threads; None for default_threads().

Returns
-------
dict of ndarray
    Every field, its mask if it has one, and the index keys, int64[n].

Raises
------
IndexError
    An index outside [0, len); nothing is written.
TypeError, ValueError, KeyError
    Indices or `out` that are not valid; nothing is written. ValueError also for a value that an
    integer field cannot hold, with its column and row; the contents of `out` are then unspecified.
MemoryError
    A batch that does not fit in memory.

Notes
-----
Releases the GIL while it writes the batch.
)";

constexpr const char* batches_doc =
    R"(Return batches of the windows at some places of an order, by one call.

Parameters
----------
order : Permutation or None
    The order; None for the windows in sequence.
start, stop : int
    0 <= start <= stop <= size of the order and number of windows: the places of the first batch.
count : int
    The number of batches, of equally many places each.
step : int
    The number of places from the start of a batch to that of the next one: no place is in two.
wrap : callable
    Makes the value of a key of a batch from its array.
wrap_keys : dict of callable
    Used in place of `wrap` for its keys.

Returns
-------
list of dict
    As of `gather`, with wrapped arrays; those of each batch are in a slab of their own.

Raises
------
TypeError, ValueError
    Arguments that are not valid; otherwise as `gather`.

Notes
-----
Releases the GIL while it writes the batches.
)";

std::vector<py::ssize_t> shape_for(const FieldSpec& spec, std::int64_t steps) {
    const auto columns = static_cast<py::ssize_t>(spec.columns.size());
    switch (spec.layout) {
        case Layout::btc:
            return {0, steps, columns};
        case Layout::bct:
            return {0, columns, steps};
        case Layout::bt:
            return {0, steps};
        case Layout::bc:
            return {0, columns};
        default:
            return {0};
    }
}

class PyGather {
  public:
    PyGather(py::object index, py::handle bounds, py::handle fields, py::handle index_keys)
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
        for (const py::handle key : py::iter(index_keys)) {
            const std::string name = text(key);
            if (name != "series_id" && name != "start") {
                throw py::value_error("index_keys holds '" + name +
                                      "', expected series_id or start");
            }
            (name == "start" ? has_start_ : has_series_) = true;
        }
        lay_out();
    }

    py::dict gather(py::handle indices, py::handle out, py::handle threads) const {
        const Indices wanted = index_array(indices, "indices");
        const int workers = thread_count(threads);
        const auto batch = static_cast<py::ssize_t>(wanted.values.size());
        std::vector<py::array> arrays = out.is_none()
                                            ? new_batch(parts_, batch)
                                            : checked_batch(out, parts_, batch, inputs(wanted));

        // Everything the threads read is a C++ value from here on.
        const Memory memory = memory_of(arrays.data());
        {
            const GilRelease unlocked;
            gather_->run(wanted.values, memory.fields, memory.series, memory.starts, workers);
        }
        return batch_dict(parts_, std::move(arrays));
    }

    py::list batches(py::handle given, py::handle start, py::handle stop, py::handle count,
                     py::handle step, const py::function& wrap, const py::dict& wrap_keys) const {
        if (!given.is_none() && !py::isinstance<Permutation>(given)) {
            throw py::type_error("order is of type " + type_name(given) +
                                 ", expected Permutation or None");
        }
        const auto* const order = given.is_none() ? nullptr : &given.cast<const Permutation&>();
        const auto limit = static_cast<std::int64_t>(
            order == nullptr ? size() : std::min(size(), std::size_t{order->size()}));
        const std::int64_t end = integer(stop, "stop", 0, limit);
        const std::int64_t first = integer(start, "start", 0, end);
        const std::int64_t stride = integer(step, "step", std::max<std::int64_t>(end - first, 1),
                                            std::max<std::int64_t>(limit, 1));
        const std::int64_t number = integer(count, "count", 1, 1 + (limit - end) / stride);
        std::vector<std::int64_t> wanted(static_cast<std::size_t>(end - first));
        // A slab for each batch: one that was dropped is written again while it is in the cache.
        std::vector<std::vector<py::array>> arrays(static_cast<std::size_t>(number));
        std::vector<Memory> memory;
        memory.reserve(arrays.size());
        for (std::vector<py::array>& batch : arrays) {
            batch = new_batch(parts_, end - first);
            memory.push_back(memory_of(batch.data()));
        }
        {
            const GilRelease unlocked;
            std::int64_t place = first;
            for (const Memory& batch : memory) {
                if (order == nullptr) {
                    std::iota(wanted.begin(), wanted.end(), place);
                } else {
                    order->slice(static_cast<std::uint64_t>(place), wanted);
                }
                gather_->run(wanted, batch.fields, batch.series, batch.starts, 1);
                place += stride;
            }
        }
        py::list made;
        for (const std::vector<py::array>& batch : arrays) {
            py::dict values;
            auto array = batch.begin();
            for (const BatchArray& part : parts_) {
                const py::handle own =
                    wrap_keys.empty() ? nullptr : PyDict_GetItem(wrap_keys.ptr(), part.key.ptr());
                const py::handle wrapper = own ? own : py::handle(wrap);
                PyObject* const value = PyObject_CallOneArg(wrapper.ptr(), (array++)->ptr());
                if (value == nullptr) throw py::error_already_set();
                values[part.key] = py::reinterpret_steal<py::object>(value);
            }
            made.append(std::move(values));
        }
        return made;
    }

    std::size_t row_bytes() const {
        std::size_t bytes = 0;
        for (const BatchArray& part : parts_)
            bytes += part.row_bytes;
        return bytes;
    }

    std::size_t size() const { return static_cast<std::size_t>(gather_->index().size()); }

  private:
    /// Where the arrays of a batch are.
    struct Memory {
        std::vector<FieldOut> fields;
        std::int64_t* series = nullptr;
        std::int64_t* starts = nullptr;
    };

    Memory memory_of(py::array* next) const {
        Memory memory;
        memory.fields.reserve(gather_->fields().size());
        for (const FieldSpec& spec : gather_->fields()) {
            FieldOut field;
            field.values = static_cast<std::byte*>((next++)->mutable_data());
            if (spec.mask) field.mask = static_cast<std::uint8_t*>((next++)->mutable_data());
            memory.fields.push_back(field);
        }
        if (has_series_) memory.series = int64_span(*next++).data();
        if (has_start_) memory.starts = int64_span(*next).data();
        return memory;
    }

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
        const auto int64s = numpy_dtype(DType::int64);
        if (has_series_) parts_.push_back({"series_id", int64s, {0}, sizeof(std::int64_t)});
        if (has_start_) parts_.push_back({"start", int64s, {0}, sizeof(std::int64_t)});
    }

    /// The memory of the indices and the columns.
    std::vector<Extent> inputs(const Indices& indices) const {
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
        return read;
    }

    py::object index_;
    py::tuple kept_;  // the fields
    std::unique_ptr<Gather> gather_;
    std::vector<BatchArray> parts_;
    bool has_series_ = false;
    bool has_start_ = false;
};

}  // namespace

void bind_gather(py::module_& m) {
    bind_fields(m);
    py::class_<PyGather>(m, "Gather", gather_doc)
        .def(py::init([](const py::object& index, py::handle bounds, py::handle fields,
                         py::handle index_keys) {
                 if (!py::isinstance<WindowIndex>(index)) {
                     throw py::type_error("index is of type " + type_name(index) +
                                          ", expected WindowIndex");
                 }
                 return std::make_unique<PyGather>(index, bounds, fields, index_keys);
             }),
             py::arg("index"), py::arg("bounds"), py::arg("fields"), py::kw_only(),
             py::arg("index_keys") = py::make_tuple("series_id", "start"))
        .def("__len__", &PyGather::size, "The number of windows.")
        .def("gather", &PyGather::gather, py::arg("indices"), py::arg("out") = py::none(),
             py::arg("threads") = 1, call_doc)
        .def_property_readonly("row_bytes", &PyGather::row_bytes, "Bytes of a row of all arrays.")
        .def("batches", &PyGather::batches, py::arg("order"), py::arg("start"), py::arg("stop"),
             py::arg("count"), py::arg("step"), py::arg("wrap"), py::arg("wrap_keys"), batches_doc);
}

}  // namespace windeck
