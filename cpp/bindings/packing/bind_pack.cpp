#include <cstring>
#include <utility>
#include <vector>

#include "base/batch.hpp"
#include "base/gil.hpp"
#include "bindings.hpp"
#include "packing/objects.hpp"

namespace windeck {
namespace {

constexpr const char* pack_doc = R"(Return a batch of rows made of pieces of document runs.

Parameters
----------
document_runs : sequence of DocumentRun
    The document runs that pieces refer to.
row_offsets : int64[k + 1]
    Row r has the pieces row_offsets[r] to row_offsets[r + 1].
document_run_of, starts, lengths : int64[p]
    Piece j has the `lengths[j]` tokens of document run document_run_of[j] from starts[j] on.
sequence_length : int
    L: a row has L + 1 tokens and L position_ids.
dtype : str
    "int64" or "int32".
pad : int, optional
    The token that fills shorter rows. Without it, all rows must be full.
out : dict of ndarray, optional
    Arrays to write into, with exactly the dtypes and shapes of the batch. By default new ones in
    one slab of the pool.
bos, eos : int, optional
    The first and the last token of each row, before and after those of its pieces: L + 1 less one
    for each of them. Their position_ids and targets_mask are those of a token more of the first
    and of the last document.
threads : int, optional
    The number of threads; None for default_threads().

Returns
-------
dict of ndarray
    "tokens" (k, L + 1); "position_ids" (k, L), which count from 0 at the start of each row, piece
    and document; with `pad` also "targets_mask" (k, L), bool.

Raises
------
TypeError, ValueError, KeyError
    Arrays that are not valid, pieces outside their document runs, rows of a wrong length; nothing is
    written. ValueError also for a token that the dtype cannot hold, with its document; the contents
    of `out` are then unspecified.
OSError
    A file that became shorter while it was mapped.

Notes
-----
Releases the GIL while it writes the batch.
)";

std::vector<BatchArray> parts_of(py::ssize_t length, DType dtype, bool padded) {
    const py::dtype integers = numpy_dtype(dtype);
    const auto size = static_cast<std::size_t>(size_of(dtype));
    const auto count = static_cast<std::size_t>(length);
    std::vector<BatchArray> parts{{"tokens", integers, {0, length + 1}, (count + 1) * size},
                                  {"position_ids", integers, {0, length}, count * size}};
    if (padded) {
        parts.push_back({"targets_mask", numpy_dtype(DType::boolean), {0, length}, count});
    }
    return parts;
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

py::dict write_batch(const py::sequence& given_document_runs, py::handle row_offsets,
                     py::handle document_run_of, py::handle starts, py::handle lengths,
                     py::handle sequence_length, py::handle dtype, py::handle pad, py::handle bos,
                     py::handle eos, py::handle out, py::handle threads) {
    const py::tuple held(
        given_document_runs);  // the caller's list may change while the GIL is away
    const Indices offsets = index_array(row_offsets, "row_offsets");
    const Indices numbers = index_array(document_run_of, "document_run_of");
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
    if (!bos.is_none()) batch.frame.bos = integer(bos, "bos");
    if (!eos.is_none()) batch.frame.eos = integer(eos, "eos");
    require_fits(batch.frame.bos, "bos", batch.dtype);
    require_fits(batch.frame.eos, "eos", batch.dtype);
    const int workers = thread_count(threads);
    std::vector<const DocumentRun*> document_runs;
    for (const py::handle document_run : held) {
        document_runs.push_back(object_of<const PyDocumentRun>(document_run,
                                                               "document_runs holds an object that",
                                                               "DocumentRun")
                                    .document_run.get());
        require_fits(document_runs.back()->frame().bos, "bos", batch.dtype);
        require_fits(document_runs.back()->frame().eos, "eos", batch.dtype);
    }
    const auto parts = parts_of(batch.length, batch.dtype, filler.has_value());
    // Checked before memory is asked for: a row that no document run fills may be of any length.
    std::uint8_t mask_there = 0;
    batch.targets_mask = filler ? &mask_there : nullptr;
    const PieceSpans pieces{offsets.values, numbers.values, firsts.values, counts.values};
    {
        const GilRelease unlocked;
        check_pieces(document_runs, pieces, batch);
    }
    std::vector<py::array> arrays =
        out.is_none()
            ? new_batch(parts, batch.rows)
            : checked_batch(
                  out, parts, batch.rows,
                  {extent(offsets.owner, "row_offsets"), extent(numbers.owner, "document_run_of"),
                   extent(firsts.owner, "starts"), extent(counts.owner, "lengths")});

    batch.tokens = static_cast<std::byte*>(arrays[0].mutable_data());
    batch.position_ids = static_cast<std::byte*>(arrays[1].mutable_data());
    if (filler) batch.targets_mask = static_cast<std::uint8_t*>(arrays[2].mutable_data());
    {
        const GilRelease unlocked;
        pack(document_runs, pieces, batch, workers);
    }
    return batch_dict(parts, std::move(arrays));
}

py::list cu_seqlens(py::handle position_ids, py::handle batches) {
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
    const std::int64_t count = integer(batches, "batches", 1);
    if (ids.size() % count != 0) {
        throw py::value_error("batches is " + std::to_string(count) + ", which does not divide " +
                              std::to_string(ids.size()) + " position_ids");
    }
    const auto* const data = static_cast<const std::byte*>(ids.data());
    const std::int64_t each = ids.size() / count;
    std::vector<std::vector<std::int32_t>> bounds(static_cast<std::size_t>(count));
    std::size_t total = 0;
    {
        const GilRelease unlocked;
        for (std::int64_t b = 0; b < count; ++b) {
            auto& found = bounds[static_cast<std::size_t>(b)];
            found = sequence_bounds(data + b * each * size_of(*dtype), each, *dtype);
            total += aligned_size(found.size() * sizeof(std::int32_t));
        }
    }
    const BatchArray part{"cu_seqlens", py::dtype::of<std::int32_t>(), {0}, sizeof(std::int32_t)};
    auto [memory, owner] = pooled_memory(total);
    py::list result;
    for (const auto& found : bounds) {
        result.append(array_in(part, std::ssize(found), memory, owner));
        std::memcpy(memory, found.data(), found.size() * sizeof(std::int32_t));
        memory += aligned_size(found.size() * sizeof(std::int32_t));
    }
    return result;
}

}  // namespace

void bind_pack(py::module_& m) {
    m.def("pack", &write_batch, py::arg("document_runs"), py::arg("row_offsets"),
          py::arg("document_run_of"), py::arg("starts"), py::arg("lengths"), py::kw_only(),
          py::arg("sequence_length"), py::arg("dtype") = name(DType::int64),
          py::arg("pad") = py::none(), py::arg("bos") = py::none(), py::arg("eos") = py::none(),
          py::arg("out") = py::none(), py::arg("threads") = 1, pack_doc);
    m.def("cu_seqlens", &cu_seqlens, py::arg("position_ids"), py::arg("batches") = 1,
          "Return the bounds of the pieces of each of `batches` flattened batches, which "
          "position_ids are of end to end, as a list of int32[m]: 0, the positions after the first "
          "where the ids are 0, and the number of ids. Within a piece they count up from 0. "
          "Aligned to 64 bytes. O(pieces) time.");
}

}  // namespace windeck
