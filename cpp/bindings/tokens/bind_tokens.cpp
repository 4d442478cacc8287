#include <pybind11/typing.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/arrays.hpp"
#include "base/gil.hpp"
#include "bindings.hpp"
#include "windeck/tokens/arrow.hpp"
#include "windeck/tokens/tokens.hpp"

namespace windeck {
namespace {

using Totals = py::typing::Tuple<py::int_, py::int_, py::int_, py::int_>;

constexpr const char* class_doc = R"(The tokens of the documents of one file, read in place.

Made by `from_stream`, `from_arrays` or `from_spans`.

Documents are numbered from 0 in the order of the file. Tokens are integers of 8 to 64 bits, which
stay in their arrays or in a mapped file. Immutable and thread-safe; methods copy only the values
they return, and release the GIL in loops.

Filters: leading and trailing tokens that are in `strip` are removed; then a document with fewer
than `min_length` tokens is filtered: it keeps its number, and has length -1 and no tokens.

Notes
-----
O(arrays) memory for lists; 16 bytes per document if each document is an array.

Examples
--------
>>> import numpy as np
>>> from windeck._core import TokenShard
>>> tokens = np.array([5, 6, 7, 0, 8], dtype=np.uint16)
>>> shard = TokenShard.from_arrays(tokens, np.array([0, 3, 3, 5]), strip=np.array([0]))
>>> len(shard), shard.dtype, shard.lengths().tolist()
(3, 'uint16', [3, 0, 1])
>>> shard.document(2)
array([8], dtype=uint16)
)";

constexpr const char* from_arrays_doc = R"(Make a shard of the documents of one array.

Document j has the values offsets[j] to offsets[j + 1].

Parameters
----------
values : ndarray
    Any integer dtype, shape (m,). Not copied unless it is strided: do not change it.
offsets : ndarray
    int64, shape (n + 1,), in [0, m], never decreasing.
strip : ndarray, optional
    int64, shape (k,): tokens to remove from the start and the end of every document.
min_length : int
    Documents with fewer tokens, after stripping, are filtered.
name : str
    The name in error messages.

Raises
------
TypeError
    Values that are not integers; offsets or strip with a dtype other than int64.
ValueError
    No offsets, offsets that decrease or exceed the values (an O(n) check), a negative min_length.
)";

constexpr const char* from_spans_doc = R"(Make a shard of documents at any places of one memory.

Document j has lengths[j] tokens from the byte starts[j] on, in the byte order of the machine.

Parameters
----------
data : ndarray
    uint8, shape (m,): the memory, such as a mapped file. Not copied: do not change it.
starts, lengths : ndarray
    int64, shape (n,). Documents may overlap, and need no alignment.
dtype : str
    The dtype of the tokens, such as 'uint16'.
strip, min_length, name
    As in `from_arrays`.
file : int
    Descriptor of the file that `data` maps from its first to its last byte (it is duplicated), or
    -1. A read of a file that was truncated while mapped is an OSError.

Raises
------
TypeError
    Data with a dtype other than uint8, starts or lengths with one other than int64, a `dtype` that
    is not an integer.
ValueError
    A document that is not inside the data, starts and lengths of different shapes, a negative
    min_length.
OSError
    A descriptor that cannot be duplicated.

Notes
-----
O(n) time, 16 bytes of memory per document.

Examples
--------
>>> import numpy as np
>>> from windeck._core import TokenShard
>>> data = np.array([5, 6, 0, 7], dtype=np.uint16).view(np.uint8)
>>> shard = TokenShard.from_spans(data, np.array([0, 6]), np.array([2, 1]), dtype="uint16")
>>> [shard.document(number).tolist() for number in range(len(shard))]
[[5, 6], [7]]
)";

constexpr const char* from_stream_doc = R"(Make a shard of the documents of an Arrow column.

Parameters
----------
stream : object with __arrow_c_stream__
    A column over the Arrow C data interface: a pyarrow ChunkedArray, a table of one column. Each
    row of a list, large_list or fixed_size_list of integers is a document, a null row an empty
    document. In a column of integers each array is a document; pass a ChunkedArray then, since a
    pyarrow table drops empty chunks.
strip, min_length, name
    As in `from_arrays`.
region : (int, int, int), optional
    Address and size in bytes of the mapped file that holds the arrays, and its descriptor (which
    is duplicated) or -1. Of arrays in it only the addresses are kept. A read of a file that was
    truncated while mapped is an OSError.
owner : object, optional
    The object that keeps `region` mapped. The shard holds a reference to it while any array is in
    the region.

Raises
------
TypeError
    A column of another type, dictionary-encoded columns included.
ValueError
    Null tokens, more than one column, offsets that decrease or exceed the values, a negative
    min_length, an array that is partly outside `region`, a stream that fails.
OSError
    A file that was truncated, a descriptor that cannot be duplicated.

Notes
-----
O(documents). The lengths of buffers outside `region` are not checked; `validate()` of pyarrow
checks them.

Examples
--------
>>> import pyarrow as pa
>>> from windeck._core import TokenShard
>>> tokens = pa.chunked_array([pa.array([[1, 2], None, [3]], pa.list_(pa.uint16()))])
>>> TokenShard.from_stream(tokens).lengths().tolist()
[2, 0, 1]
)";

/// A reference to a Python object that C++ may give up in any thread.
std::shared_ptr<const void> kept_alive(py::object object) {
    return {object.release().ptr(), [](PyObject* held) {
                const GilAcquire gil;
                Py_DECREF(held);
            }};
}

TokenFilter token_filter(py::handle strip, py::handle min_length) {
    TokenFilter filter;
    if (!strip.is_none()) {
        const Indices values = index_array(strip, "strip");
        filter.strip.assign(values.values.begin(), values.values.end());
    }
    filter.min_length = integer(min_length, "min_length", 0);
    return filter;
}

DType token_dtype(const py::array& values) {
    const auto found = dtype_of(values.dtype());
    if (!found || !is_integer(*found)) {
        throw py::type_error("values has dtype " + text(values.dtype()) +
                             ", expected native integers of 8 to 64 bits");
    }
    return *found;
}

std::shared_ptr<TokenShard> from_arrays(py::handle values, py::handle offsets, py::handle strip,
                                        py::handle min_length, const std::string& name) {
    if (!py::isinstance<py::array>(values)) {
        throw py::type_error("values is of type " + type_name(values) +
                             ", expected an array of integers");
    }
    auto tokens = py::reinterpret_borrow<py::array>(values);
    const DType dtype = token_dtype(tokens);
    if (tokens.ndim() != 1) {
        throw py::value_error("values has shape " + shape_text(shape_of(tokens)) +
                              ", expected one dimension");
    }
    if ((tokens.flags() & py::array::c_style) == 0) tokens = tokens.attr("copy")();
    const Indices bounds = index_array(offsets, "offsets");
    if (bounds.values.empty()) {
        throw py::value_error("offsets is empty, expected one more entry than there are documents");
    }
    TokenFilter filter = token_filter(strip, min_length);
    const TokenLists lists{.values = static_cast<const std::byte*>(tokens.data()),
                           .count = tokens.size(),
                           .offsets = reinterpret_cast<const std::byte*>(bounds.values.data()),
                           .offset_bytes = 8,
                           .rows = static_cast<std::int64_t>(bounds.values.size()) - 1};
    TokenMemory memory{.owner = kept_alive(py::make_tuple(tokens, bounds.owner))};
    const GilRelease unlocked;  // every offset is looked at
    return std::make_shared<TokenShard>(dtype, std::vector{lists}, std::move(filter),
                                        std::move(memory), name);
}

std::shared_ptr<TokenShard> from_spans(py::handle data, py::handle starts, py::handle lengths,
                                       const std::string& dtype, py::handle strip,
                                       py::handle min_length, py::handle file,
                                       const std::string& name) {
    const auto kind = dtype_named(dtype);
    if (!kind || !is_integer(*kind)) {
        throw py::type_error("dtype is '" + dtype + "', expected integers of 8 to 64 bits");
    }
    const Bytes memory = byte_array(data, "data");
    const Indices begins = index_array(starts, "starts");
    const Indices sizes = index_array(lengths, "lengths");
    TokenFilter filter = token_filter(strip, min_length);
    const auto descriptor = static_cast<int>(integer(file, "file", -1, INT32_MAX));
    auto owner = kept_alive(memory.owner);
    const GilRelease unlocked;  // every document is looked at
    auto spans =
        token_spans(std::as_bytes(memory.values), begins.values, sizes.values, *kind, name);
    const auto kept = std::make_shared<std::pair<std::shared_ptr<const void>, Descriptor>>(
        std::move(owner), Descriptor(descriptor, name));
    TokenMemory held{.owner = kept,
                     .mapped = descriptor >= 0,
                     .bytes = static_cast<std::int64_t>(memory.values.size()),
                     .file = kept->second.number()};
    return std::make_shared<TokenShard>(*kind, std::move(spans), std::move(filter), std::move(held),
                                        name);
}

/// The stream an object offers, moved out of its capsule.
Owned<ArrowArrayStream> stream_of(py::handle object) {
    constexpr const char* method = "__arrow_c_stream__";
    if (!py::hasattr(object, method)) {
        throw py::type_error("stream is of type " + type_name(object) +
                             ", expected an object with __arrow_c_stream__, as pyarrow's "
                             "ChunkedArray and Table are");
    }
    const py::object capsule = object.attr(method)();
    auto* const found =
        static_cast<ArrowArrayStream*>(PyCapsule_GetPointer(capsule.ptr(), "arrow_array_stream"));
    if (found == nullptr) {
        PyErr_Clear();
        throw py::type_error("__arrow_c_stream__ of stream gave an object of type " +
                             type_name(capsule) + ", expected a capsule 'arrow_array_stream'");
    }
    if (found->release == nullptr) {
        throw py::value_error("stream is used up, expected one that was not read yet");
    }
    Owned<ArrowArrayStream> moved(*found);
    found->release = nullptr;
    return moved;
}

std::optional<MappedFile> mapped_file(py::handle region) {
    if (region.is_none()) return std::nullopt;
    if (!py::isinstance<py::tuple>(region) || py::len(region) != 3) {
        throw py::type_error("region is of type " + type_name(region) +
                             ", expected a tuple (address, size, descriptor)");
    }
    const auto numbers = py::reinterpret_borrow<py::tuple>(region);
    const std::uint64_t address = uint64(numbers[0], "region[0]");
    const std::int64_t bytes = integer(numbers[1], "region[1]", 0);
    const std::int64_t descriptor = integer(numbers[2], "region[2]", -1, INT32_MAX);
    if (address + static_cast<std::uint64_t>(bytes) < address) {
        throw py::value_error("region has " + std::to_string(bytes) +
                              " bytes, expected a size that ends within the address space");
    }
    return MappedFile{reinterpret_cast<const std::byte*>(address), bytes,
                      static_cast<int>(descriptor)};
}

std::shared_ptr<TokenShard> from_stream(const py::object& stream, py::handle strip,
                                        py::handle min_length, py::handle region, py::object owner,
                                        const std::string& name) {
    TokenFilter filter = token_filter(strip, min_length);
    const auto file = mapped_file(region);
    auto kept = kept_alive(std::move(owner));
    auto moved = stream_of(stream);
    const GilRelease unlocked;  // as many calls as there are arrays
    return std::make_shared<TokenShard>(
        shard_of_stream(std::move(moved), std::move(filter), file, std::move(kept), name));
}

py::array lengths(const TokenShard& shard, py::handle out) {
    py::array result = int64_out(out, static_cast<py::ssize_t>(shard.documents()), "out");
    const auto into = int64_span(result);
    const GilRelease unlocked;
    shard.lengths(0, into);
    return result;
}

Totals totals(const TokenShard& shard) {
    TokenShard::Totals found;
    {
        const GilRelease unlocked;
        found = shard.totals();
    }
    return py::make_tuple(found.documents, found.tokens, found.kept_documents, found.kept_tokens);
}

py::array document(const TokenShard& shard, const IntegerLike& number) {
    const auto wanted = static_cast<std::int64_t>(
        index_in(number.value, static_cast<std::uint64_t>(shard.documents()), "document"));
    std::int64_t length = 0;
    {
        const GilRelease unlocked;  // pages may have to come in
        shard.lengths(wanted, std::span(&length, 1));
    }
    py::array copy(numpy_dtype(shard.dtype()), std::max<std::int64_t>(length, 0));
    const std::span into(static_cast<std::byte*>(copy.mutable_data()),
                         static_cast<std::size_t>(copy.nbytes()));
    const GilRelease unlocked;
    shard.copy(wanted, into);
    return copy;
}

void translate(std::exception_ptr thrown) {
    try {
        if (thrown) std::rethrow_exception(thrown);
    } catch (const FileError& error) {
        py::set_error(PyExc_OSError, error.what());
    } catch (const WrongType& error) {
        py::set_error(PyExc_TypeError, error.what());
    }
}

}  // namespace

void bind_tokens(py::module_& m) {
    py::register_local_exception_translator(&translate);
    py::class_<TokenShard, std::shared_ptr<TokenShard>>(m, "TokenShard", class_doc)
        .def_static("from_stream", &from_stream, py::arg("stream"), py::kw_only(),
                    py::arg("strip") = py::none(), py::arg("min_length") = 0,
                    py::arg("region") = py::none(), py::arg("owner") = py::none(),
                    py::arg("name") = "", from_stream_doc)
        .def_static("from_arrays", &from_arrays, py::arg("values"), py::arg("offsets"),
                    py::kw_only(), py::arg("strip") = py::none(), py::arg("min_length") = 0,
                    py::arg("name") = "", from_arrays_doc)
        .def_static("from_spans", &from_spans, py::arg("data"), py::arg("starts"),
                    py::arg("lengths"), py::kw_only(), py::arg("dtype"),
                    py::arg("strip") = py::none(), py::arg("min_length") = 0, py::arg("file") = -1,
                    py::arg("name") = "", from_spans_doc)
        .def(
            "__len__",
            [](const TokenShard& shard) { return static_cast<std::size_t>(shard.documents()); },
            "The number of documents, including filtered ones.")
        .def_property_readonly(
            "dtype", [](const TokenShard& shard) { return name(shard.dtype()); },
            "The dtype of the tokens, such as 'int32'.")
        .def_property_readonly("name", &TokenShard::name, "The name in error messages.")
        .def_property_readonly("mapped", &TokenShard::mapped,
                               "Whether the tokens are read from a mapped file.")
        .def("lengths", &lengths, py::arg("out") = py::none(),
             "Return the number of tokens of every document after filters, int64[n]; -1 for "
             "filtered "
             "documents. OSError for a file that was truncated.")
        .def("totals", &totals,
             "Return (documents, tokens, kept_documents, kept_tokens), before and after filters. "
             "O(arrays), or O(n) with filters. OSError for a file that was truncated.")
        .def("document", &document, py::arg("document"),
             "Return a copy of the tokens of a document after filters, empty if it is filtered. "
             "IndexError outside [0, len); OSError for a file that was truncated or written to.")
        .def(
            "part",
            [](const TokenShard& shard, py::handle key, py::handle first, py::handle last) {
                return std::make_shared<TokenShard>(
                    shard.part({uint64(key, "key"), uint64(first, "first"), uint64(last, "last")}));
            },
            py::arg("key"), py::arg("first"), py::arg("last"),
            "Return the same documents, with those filtered whose hash under `key` is outside of "
            "[first, last]. The hash of document j is the j-th key of cpp/include/windeck/base/"
            "hash.hpp. The memory is shared.")
        .def("__repr__", [](const TokenShard& shard) {
            return "TokenShard(" + std::to_string(shard.documents()) + " documents of " +
                   name(shard.dtype()) + ")";
        });
}

}  // namespace windeck
