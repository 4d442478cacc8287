#include <numeric>
#include <stdexcept>
#include <utility>

#include "base/gil.hpp"
#include "bindings.hpp"
#include "packing/objects.hpp"

namespace windeck {
namespace {

PyFit make_fit(const PyDocumentRun& document_run, py::handle capacity, py::handle overlap) {
    const std::int64_t shared = integer(overlap, "overlap", 0, 1);
    const std::int64_t room = integer(capacity, "capacity", shared + 1);
    const DocumentRun& documents = *document_run.document_run;
    const GilRelease unlocked;
    std::vector<std::int64_t> lengths;
    lengths.reserve(static_cast<std::size_t>(documents.documents()));
    for (std::int64_t place = 0; place < documents.documents(); ++place)
        lengths.push_back(documents.before(place + 1) - documents.before(place));
    return {room, best_fit(lengths, room, shared)};
}

std::size_t checked(std::int64_t number, std::int64_t count, const char* what) {
    if (number >= 0 && number < count) return static_cast<std::size_t>(number);
    throw std::out_of_range(std::string(what) + " " + std::to_string(number) +
                            " is out of range for " + std::to_string(count));
}

Pieces pieces_of(std::span<const PyFit* const> fits, std::span<const std::int64_t> fit_of,
                 std::span<const std::int64_t> sequences) {
    Pieces pieces;
    for (std::size_t r = 0; r < sequences.size(); ++r) {
        const PyFit& fit = *fits[checked(fit_of[r], static_cast<std::int64_t>(fits.size()), "fit")];
        const std::size_t bin = checked(sequences[r], fit.sequences(), "sequence");
        const auto end = static_cast<std::size_t>(fit.bins.offsets[bin + 1]);
        for (auto p = static_cast<std::size_t>(fit.bins.offsets[bin]); p < end; ++p)
            pieces.add(fit_of[r], fit.bins.starts[p], fit.bins.lengths[p]);
        pieces.end_row();
    }
    return pieces;
}

/// The pieces of rows: row r is sequence sequences[r] of fit fit_of[r], made from document run
/// fit_of[r].
py::tuple fit_pieces(const py::sequence& given_fits, py::handle fit_of, py::handle sequences) {
    const py::tuple held(given_fits);
    std::vector<const PyFit*> fits;
    for (const py::handle fit : held)
        fits.push_back(&object_of<const PyFit>(fit, "fits holds an object that", "BestFit"));
    const Indices numbers = index_array(fit_of, "fit_of");
    const Indices wanted = index_array(sequences, "sequences");
    if (numbers.values.size() != wanted.values.size()) {
        throw py::value_error("sequences has " + std::to_string(wanted.values.size()) +
                              " entries, expected " + std::to_string(numbers.values.size()));
    }
    Pieces pieces;
    {
        const GilRelease unlocked;
        pieces = pieces_of(fits, numbers.values, wanted.values);
    }
    return piece_arrays(pieces);
}

/// The sequences that hold any of the tokens [start, stop) of the document run, ascending.
py::array sequences_with(const PyFit& self, py::handle start, py::handle stop) {
    const std::int64_t from = integer(start, "start", 0);
    const std::int64_t to = integer(stop, "stop", 0);
    std::vector<std::int64_t> found;
    {
        const GilRelease unlocked;
        const Bins& bins = self.bins;
        for (std::size_t b = 0; b + 1 < bins.offsets.size(); ++b) {
            for (auto p = static_cast<std::size_t>(bins.offsets[b]);
                 p < static_cast<std::size_t>(bins.offsets[b + 1]); ++p) {
                if (bins.starts[p] >= to || bins.starts[p] + bins.lengths[p] <= from) continue;
                found.push_back(static_cast<std::int64_t>(b));
                break;
            }
        }
    }
    return int64_array(found);
}

}  // namespace

void bind_best_fit(py::module_& m) {
    py::class_<PyFit>(
        m, "BestFit",
        "Sequences of at most `capacity` tokens, packed with best fit from the whole "
        "documents of a document run. Each document in turn goes into the open sequence with "
        "the least room that suffices, of these the one opened last, or else into a "
        "new one. A longer document is cut into pieces that overlap by `overlap` "
        "tokens, 0 or 1. O(documents log documents).")
        .def(py::init(&make_fit), py::arg("document_run"), py::arg("capacity"),
             py::arg("overlap") = 1)
        .def("__len__",
             [](const PyFit& self) { return static_cast<std::size_t>(self.sequences()); })
        .def_property_readonly(
            "tokens",
            [](const PyFit& self) {
                const GilRelease unlocked;
                return std::accumulate(self.bins.lengths.begin(), self.bins.lengths.end(),
                                       std::int64_t{0});
            },
            "The tokens in all sequences; tokens that two pieces share count twice.")
        .def("sequences_with", &sequences_with, py::arg("start"), py::arg("stop"),
             "Return the sequences that hold any of the tokens [start, stop) of the document run, "
             "int64[m], "
             "ascending.");
    m.def("fit_pieces", &fit_pieces, py::arg("fits"), py::arg("fit_of"), py::arg("sequences"),
          "Return the pieces of rows as (row_offsets, document_run_of, starts, lengths), where row "
          "r is "
          "sequence sequences[r] of fit fit_of[r].");
}

}  // namespace windeck
