// The Python objects of packing, shared by the files that bind them.

#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/arrays.hpp"
#include "windeck/packing/packing.hpp"

namespace windeck {

/// Documents of several shards. Complete after a document run was made of it, and not changed from
/// then on.
struct PyBlock {
    std::mutex mutex;
    DocumentBlock block;
    py::list kept;  // shards whose memory the block refers to
    bool complete = false;

    explicit PyBlock(DocumentBlock documents) : block(std::move(documents)) {}
};

/// A document run, and the shard or block it reads.
struct PyDocumentRun {
    py::object owner;
    std::unique_ptr<const DocumentRun> document_run;
};

/// The sequences that best fit makes of a document run.
struct PyFit {
    std::int64_t capacity;
    Bins bins;

    std::int64_t sequences() const { return static_cast<std::int64_t>(bins.offsets.size()) - 1; }
};

/// The pieces of rows as (row_offsets, document_run_of, starts, lengths).
inline py::tuple piece_arrays(const Pieces& pieces) {
    return py::make_tuple(int64_array(pieces.row_offsets), int64_array(pieces.document_run_of),
                          int64_array(pieces.starts), int64_array(pieces.lengths));
}

/// The C++ object of a Python object, or a TypeError that names the argument.
template <typename T>
T& object_of(py::handle value, const std::string& name, const char* expected) {
    if (!py::isinstance<T>(value)) {
        throw py::type_error(name + " is of type " + type_name(value) + ", expected " + expected);
    }
    return value.cast<T&>();
}

/// A number in [0, count), or an IndexError that names it.
inline std::int64_t place_in(py::handle value, const char* name, std::int64_t count) {
    const std::int64_t found = integer(value, name);
    if (found < 0 || found >= count) {
        throw py::index_error(std::string(name) + " " + std::to_string(found) +
                              " is out of range for " + std::to_string(count));
    }
    return found;
}

void bind_part_order(py::module_& m);
void bind_best_fit(py::module_& m);
void bind_pack(py::module_& m);

}  // namespace windeck
