#include <algorithm>
#include <utility>

#include "base/batch.hpp"
#include "bindings.hpp"
#include "packing/objects.hpp"
#include "windeck/base/parallel.hpp"
#include "windeck/base/pool.hpp"

namespace windeck {
namespace {

constexpr const char* pack_doc = R"(Writes a batch of rows out of pieces of runs.

Parameters
----------
runs : sequence of DocumentRun
    What pieces are of.
row_offsets : int64[k + 1]
    Row r is the pieces row_offsets[r] to row_offsets[r + 1].
run_of, starts, lengths : int64[p]
    Piece j is `lengths[j]` tokens from starts[j] on of run run_of[j].
sequence_length : int
    L: rows have L + 1 tokens and L position_ids.
dtype : str
    "int64" or "int32".
pad : int, optional
    Rows may be shorter, and are filled up with this token. Without it they are full.
out : dict of ndarray, optional
    Arrays to write into, of exactly the batch's dtypes and shapes. By default one aligned slab of
    the pool holds the batch.
threads : int, optional
    How many threads work at it; None for default_threads().

Returns
-------
dict of ndarray
    "tokens" (k, L + 1); "position_ids" (k, L), counting from 0 at each row's, piece's and
    document's begin; with `pad` "targets_mask" (k, L), bool.

Raises
------
TypeError, ValueError, KeyError
    Arrays of the wrong kind, pieces that do not lie inside their runs, rows of a wrong length,
    before anything is written; ValueError for a token that the dtype cannot hold, naming it and
    its document. What `out` holds then is unspecified.
OSError
    When a file became shorter while it was mapped.

Notes
-----
The GIL is released while the batch is written.
)";

struct Part {
    const char* key;
    py::dtype dtype;
    std::vector<py::ssize_t> shape;

    std::size_t bytes() const {
        auto total = static_cast<std::size_t>(dtype.itemsize());
        for (const py::ssize_t extent : shape) {
            if (__builtin_mul_overflow(total, static_cast<std::size_t>(extent), &total) ||
                total > PTRDIFF_MAX / 8) {
                throw std::bad_alloc();
            }
        }
        return total;
    }
};

std::vector<Part> parts_of(py::ssize_t rows, py::ssize_t length, DType dtype, bool padded) {
    const py::dtype integers = numpy_dtype(dtype);
    std::vector<Part> parts{{"tokens", integers, {rows, length + 1}},
                            {"position_ids", integers, {rows, length}}};
    if (padded) parts.push_back({"targets_mask", numpy_dtype(DType::boolean), {rows, length}});
    return parts;
}

/// Arrays on one slab, which goes back to the pool when the last of them is gone.
std::vector<py::array> fresh(const std::vector<Part>& parts) {
    std::size_t total = 0;
    for (const Part& part : parts)
        total += aligned_size(part.bytes());
    auto [data, owner] = pooled(total);
    std::vector<py::array> arrays;
    for (const Part& part : parts) {
        arrays.emplace_back(part.dtype, part.shape, std::vector<py::ssize_t>(), data, owner);
        data += aligned_size(part.bytes());
    }
    return arrays;
}

/// The arrays of `out`, every one checked before any is written to.
std::vector<py::array> given(py::handle out, const std::vector<Part>& parts,
                             const std::vector<Extent>& read) {
    if (!py::isinstance<py::dict>(out)) {
        throw py::type_error("out is of type " + type_name(out) + ", expected a dict of arrays");
    }
    const auto dict = py::reinterpret_borrow<py::dict>(out);
    std::vector<py::array> arrays;
    std::vector<Extent> written;
    for (const Part& part : parts) {
        const std::string what = "out['" + std::string(part.key) + "']";
        if (!dict.contains(part.key)) {
            throw py::key_error(what + " is missing, expected an array for every key");
        }
        arrays.push_back(out_array(dict[part.key], part.dtype, part.shape, what));
        written.push_back(extent(arrays.back(), what));
    }
    for (const auto& [key, value] : dict) {
        const auto same = [&](const Part& part) { return py::str(part.key).equal(key); };
        if (std::ranges::none_of(parts, same)) {
            throw py::key_error("out holds the key '" + text(key) +
                                "', which the batch does not have");
        }
    }
    require_disjoint(std::move(written), read);
    return arrays;
}

DType batch_dtype(py::handle dtype) {
    const auto wanted = dtype_named(text(dtype));
    if (wanted == DType::int64 || wanted == DType::int32) return *wanted;
    throw py::value_error("dtype is '" + text(dtype) + "', expected 'int64' or 'int32'");
}

void require_fits(const std::optional<std::int64_t>& token, const char* what, DType dtype) {
    if (!token || dtype == DType::int64 || *token == static_cast<std::int32_t>(*token)) return;
    throw py::value_error(std::string(what) + " is " + std::to_string(*token) + ", which " +
                          name(dtype) + " cannot hold");
}

py::dict write_batch(const py::sequence& given_runs, py::handle row_offsets, py::handle run_of,
                     py::handle starts, py::handle lengths, py::handle sequence_length,
                     py::handle dtype, py::handle pad, py::handle out, py::handle threads) {
    const py::tuple held(given_runs);  // the caller's list may change while the GIL is away
    const Indices offsets = index_array(row_offsets, "row_offsets");
    const Indices numbers = index_array(run_of, "run_of");
    const Indices firsts = index_array(starts, "starts");
    const Indices counts = index_array(lengths, "lengths");
    if (offsets.values.empty()) {
        throw py::value_error("row_offsets has no entry, expected one more than there are rows");
    }
    PackOut batch;
    batch.dtype = batch_dtype(dtype);
    batch.rows = static_cast<std::int64_t>(offsets.values.size()) - 1;
    batch.length = integer(sequence_length, "sequence_length", 1, PTRDIFF_MAX / 64);
    std::optional<std::int64_t> filler;
    if (!pad.is_none()) filler = integer(pad, "pad");
    require_fits(filler, "pad", batch.dtype);
    batch.pad = filler.value_or(0);
    const int crew = threads.is_none() ? default_threads()
                                       : static_cast<int>(integer(threads, "threads", 1, 1024));
    std::vector<const DocumentRun*> runs;
    for (const py::handle run : held) {
        runs.push_back(
            object_of<const PyRun>(run, "runs holds an object that", "DocumentRun").run.get());
        require_fits(runs.back()->frame().bos, "bos", batch.dtype);
        require_fits(runs.back()->frame().eos, "eos", batch.dtype);
    }
    const auto parts = parts_of(batch.rows, batch.length, batch.dtype, filler.has_value());
    const std::vector<Extent> read{extent(offsets.owner, "row_offsets"),
                                   extent(numbers.owner, "run_of"), extent(firsts.owner, "starts"),
                                   extent(counts.owner, "lengths")};
    // Checked before memory is asked for: a row that no run fills may be of any length.
    std::uint8_t mask_there = 0;
    batch.targets_mask = filler ? &mask_there : nullptr;
    const PieceSpans pieces{offsets.values, numbers.values, firsts.values, counts.values};
    {
        const py::gil_scoped_release unlocked;
        check_pieces(runs, pieces, batch);
    }
    std::vector<py::array> arrays = out.is_none() ? fresh(parts) : given(out, parts, read);

    batch.tokens = static_cast<std::byte*>(arrays[0].mutable_data());
    batch.position_ids = static_cast<std::byte*>(arrays[1].mutable_data());
    if (filler) batch.targets_mask = static_cast<std::uint8_t*>(arrays[2].mutable_data());
    {
        const py::gil_scoped_release unlocked;
        pack(runs, pieces, batch, crew);
    }
    py::dict result;
    for (std::size_t i = 0; i < parts.size(); ++i)
        result[parts[i].key] = std::move(arrays[i]);
    return result;
}

py::array cu_seqlens(py::handle position_ids) {
    if (!py::isinstance<py::array>(position_ids)) {
        throw py::type_error("position_ids is of type " + type_name(position_ids) +
                             ", expected an array");
    }
    const auto ids = py::reinterpret_borrow<py::array>(position_ids);
    const auto dtype = dtype_of(ids.dtype());
    if (dtype != DType::int64 && dtype != DType::int32) {
        throw py::type_error("position_ids has dtype " + text(ids.dtype()) +
                             ", expected int64 or int32");
    }
    if ((ids.flags() & py::array::c_style) == 0 || !is_aligned(ids)) {
        throw py::value_error("position_ids is not contiguous, expected a C-contiguous array");
    }
    const void* const data = ids.data();
    const auto count = static_cast<std::int64_t>(ids.size());
    std::vector<std::int32_t> bounds;
    {
        const py::gil_scoped_release unlocked;
        bounds = sequence_bounds(data, count, *dtype);
    }
    py::array_t<std::int32_t> result(static_cast<py::ssize_t>(bounds.size()));
    std::ranges::copy(bounds, result.mutable_data());
    return result;
}

}  // namespace

void bind_pack(py::module_& m) {
    m.def("pack", &write_batch, py::arg("runs"), py::arg("row_offsets"), py::arg("run_of"),
          py::arg("starts"), py::arg("lengths"), py::kw_only(), py::arg("sequence_length"),
          py::arg("dtype") = name(DType::int64), py::arg("pad") = py::none(),
          py::arg("out") = py::none(), py::arg("threads") = 1, pack_doc);
    m.def("cu_seqlens", &cu_seqlens, py::arg("position_ids"),
          "cu_seqlens(position_ids) -> int32[m]: 0, the places behind the first at which the "
          "flattened ids are 0, and their number: where the sequences of a flattened batch begin.");
}

}  // namespace windeck
