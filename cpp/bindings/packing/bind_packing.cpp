#include <algorithm>
#include <optional>
#include <utility>

#include "base/gil.hpp"
#include "base/numbers.hpp"
#include "bindings.hpp"
#include "packing/objects.hpp"
#include "windeck/base/parallel.hpp"
#include "windeck/tokens/tokens.hpp"

namespace windeck {
namespace {

constexpr const char* document_run_doc =
    R"(DocumentRun(documents, *, seed=None, epoch=0, bos=None, eos=None, threads=1)

The framed documents of a shard or block, concatenated, with prefix sums of their lengths.

Parameters
----------
documents : TokenShard or DocumentBlock
    The source of the documents; the document run holds a reference to it.
seed, epoch : int, optional
    For a shard: the order is Permutation(documents, seed=seed, epoch=epoch), or that of the file
    if the seed is None.
bos, eos : int, optional
    The tokens before and after every document that is not filtered.
threads : int
    The number of threads that read lengths.

Raises
------
TypeError, ValueError
    An object that has no documents; a number outside its range.
OSError
    A file that became shorter while it was mapped.

Notes
-----
O(documents) time, 8 bytes of memory per document. Immutable and thread-safe.

Examples
--------
>>> import numpy as np
>>> from windeck._core import DocumentRun, TokenShard
>>> shard = TokenShard.from_arrays(np.arange(5, dtype=np.int32), np.array([0, 2, 5]))
>>> run = DocumentRun(shard, eos=0)
>>> run.total, run.extent(1)
(7, (3, 7))
)";

Frame frame_of(py::handle bos, py::handle eos) {
    Frame frame;
    if (!bos.is_none()) frame.bos = integer(bos, "bos");
    if (!eos.is_none()) frame.eos = integer(eos, "eos");
    return frame;
}

PyDocumentRun make_document_run(const py::object& documents, py::handle seed, py::handle epoch,
                                py::handle bos, py::handle eos, py::handle threads) {
    const Frame frame = frame_of(bos, eos);
    const int workers = static_cast<int>(integer(threads, "threads", 1, 1024));
    if (py::isinstance<PyBlock>(documents)) {
        if (!seed.is_none()) throw py::value_error("seed is given, expected none for a block");
        auto& held = documents.cast<PyBlock&>();
        std::unique_ptr<const DocumentRun> document_run;
        {
            const GilRelease unlocked;
            const std::lock_guard lock(held.mutex);
            held.complete = true;
            document_run = std::make_unique<DocumentRun>(held.block, frame);
        }
        return {documents, std::move(document_run)};
    }
    const auto& shard =
        object_of<const TokenShard>(documents, "documents", "TokenShard or DocumentBlock");
    std::optional<Permutation> order;
    const auto n = static_cast<std::uint64_t>(shard.documents());
    if (!seed.is_none()) {
        const std::uint64_t seed_word = uint64(seed, "seed");
        const std::uint64_t epoch_word = uint64(epoch, "epoch");
        if (n > 0) order.emplace(n, seed_word, epoch_word);
    }
    std::unique_ptr<const DocumentRun> document_run;
    {
        const GilRelease unlocked;
        document_run = std::make_unique<DocumentRun>(shard, order, frame, workers);
    }
    return {documents, std::move(document_run)};
}

py::tuple document_run_spans(const PyDocumentRun& self, py::handle start, py::handle length) {
    const DocumentRun& document_run = *self.document_run;
    const std::int64_t from = integer(start, "start", 0, document_run.total());
    std::int64_t left = integer(length, "length", 0, document_run.total() - from);
    std::vector<std::int64_t> documents, starts, stops;
    if (left > 0) {
        const GilRelease unlocked;
        std::int64_t place = document_run.find(from);
        for (std::int64_t within = from - document_run.before(place); left > 0;
             ++place, within = 0) {
            const std::int64_t framed = document_run.before(place + 1) - document_run.before(place);
            const std::int64_t taken = std::min(left, framed - within);
            if (taken == 0) continue;
            documents.push_back(document_run.at(place));
            starts.push_back(within);
            stops.push_back(within + taken);
            left -= taken;
        }
    }
    return py::make_tuple(int64_array(documents), int64_array(starts), int64_array(stops));
}

DocumentBlock::Take taken_as(const std::string& take) {
    if (take == "copies") return DocumentBlock::Take::copies;
    if (take == "addresses") return DocumentBlock::Take::addresses;
    if (take == "lengths") return DocumentBlock::Take::lengths;
    throw py::value_error("take is '" + take + "', expected copies, addresses or lengths");
}

void read_block(PyBlock& self, const py::object& shard, py::handle documents, py::handle places,
                const std::string& how) {
    const auto& from = object_of<const TokenShard>(shard, "shard", "TokenShard");
    const Indices numbers = index_array(documents, "documents");
    const Indices targets = index_array(places, "places");
    if (numbers.values.size() != targets.values.size()) {
        throw py::value_error("places has " + std::to_string(targets.values.size()) +
                              " entries, expected " + std::to_string(numbers.values.size()));
    }
    const DocumentBlock::Take take = taken_as(how);
    if (take == DocumentBlock::Take::addresses) self.kept.append(shard);
    const GilRelease unlocked;
    const std::lock_guard lock(self.mutex);
    if (self.complete) {
        throw std::invalid_argument(
            "a document run was made of the block, expected one that is not complete");
    }
    self.block.read(from, numbers.values, targets.values, take);
}

void bind_document_runs(py::module_& m) {
    py::class_<PyBlock>(m, "DocumentBlock",
                        "Documents of several shards at numbered places. `read` documents shard by "
                        "shard, then make a DocumentRun of the block.")
        .def(py::init([](py::handle places) {
                 return std::make_unique<PyBlock>(
                     DocumentBlock(integer(places, "places", 0, 1 << 30)));
             }),
             py::arg("places"))
        .def("__len__", [](const PyBlock& self) { return self.block.tokens().size(); })
        .def("read", &read_block, py::arg("shard"), py::arg("documents"), py::arg("places"),
             py::kw_only(), py::arg("take") = "copies",
             "Put documents (int64[m]) of a shard at places (int64[m]) of the block. take='copies' "
             "copies their tokens, take='addresses' refers to the shard, take='lengths' does "
             "neither.")
        .def(
            "bare",
            [](PyBlock& self) {
                DocumentBlock without(0);
                {
                    const GilRelease unlocked;
                    const std::lock_guard lock(self.mutex);
                    without = self.block.without_tokens();
                }
                return std::make_unique<PyBlock>(std::move(without));
            },
            "Return a block of the same documents without their tokens.");

    py::class_<PyDocumentRun>(m, "DocumentRun", document_run_doc)
        .def(py::init(&make_document_run), py::arg("documents"), py::kw_only(),
             py::arg("seed") = py::none(), py::arg("epoch") = 0, py::arg("bos") = py::none(),
             py::arg("eos") = py::none(), py::arg("threads") = 1)
        .def("__len__",
             [](const PyDocumentRun& self) {
                 return static_cast<std::size_t>(self.document_run->documents());
             })
        .def_property_readonly(
            "total", [](const PyDocumentRun& self) { return self.document_run->total(); },
            "The number of framed tokens.")
        .def(
            "extent",
            [](const PyDocumentRun& self, py::handle document) {
                const DocumentRun& document_run = *self.document_run;
                const std::int64_t place =
                    document_run.index_of(place_in(document, "document", document_run.documents()));
                return py::make_tuple(document_run.before(place), document_run.before(place + 1));
            },
            py::arg("document"),
            "Return (start, stop) of a document in the tokens of the document run; for a block, of "
            "a place.")
        .def("spans", &document_run_spans, py::arg("start"), py::arg("length"),
             "Return the ranges of framed documents that the tokens [start, start + length) of the "
             "document run consist of, as (documents, starts, stops), int64 each.");
}

}  // namespace

void bind_packing(py::module_& m) {
    bind_part_order(m);
    bind_document_runs(m);
    m.def(
        "add_block_sums",
        [](const py::object& shard, py::handle size, py::handle seed, py::handle first,
           py::handle block_size, py::handle frame, py::array sums, py::handle threads) {
            const auto& from = object_of<const TokenShard>(shard, "shard", "TokenShard");
            const Permutation order(static_cast<std::uint64_t>(integer(size, "size", 1)),
                                    uint64(seed, "seed"));
            const std::int64_t start = integer(first, "first", 0);
            const std::int64_t block = integer(block_size, "block_size", 1);
            Frame framing;
            const std::int64_t extra = integer(frame, "frame", 0, 2);
            if (extra > 0) framing.bos = 0;
            if (extra > 1) framing.eos = 0;
            const py::ssize_t shape = sums.ndim() == 1 ? sums.shape(0) : 0;
            py::array into =
                out_array(sums, py::dtype::of<std::int64_t>(), std::span(&shape, 1), "sums");
            const int workers = static_cast<int>(integer(threads, "threads", 1, 1024));
            const auto values = int64_span(into);
            const GilRelease unlocked;
            add_block_sums(from, order, start, block, framing, values, workers);
        },
        py::arg("shard"), py::kw_only(), py::arg("size"), py::arg("seed"), py::arg("first"),
        py::arg("block_size"), py::arg("frame"), py::arg("sums"), py::arg("threads") = 1,
        "Add the framed length of each document of a shard to the sum of its block: of document "
        "first + j, the place in Permutation(size, seed=seed) // block_size. `frame` is the number "
        "of tokens that a frame adds. Several threads may add to the same sums.");
    bind_best_fit(m);
    bind_pack(m);
}

}  // namespace windeck
