// The Python objects of embedding tables, shared by the files that bind them.

#pragma once

#include <memory>
#include <mutex>
#include <span>

#include "base/arrays.hpp"
#include "windeck/table/table.hpp"

namespace windeck {

/// A snapshot that can be closed; a read in progress keeps the memory it reads.
class PySnapshot {
  public:
    explicit PySnapshot(std::shared_ptr<const TableSnapshot> snapshot)
        : snapshot_(std::move(snapshot)) {}

    std::shared_ptr<const TableSnapshot> get() const;
    void close();

  private:
    mutable std::mutex mutex_;
    std::shared_ptr<const TableSnapshot> snapshot_;
};

/// The shape of an array of rows.
inline std::array<py::ssize_t, 2> rows_shape(std::size_t rows, std::int64_t columns) {
    return {static_cast<py::ssize_t>(rows), static_cast<py::ssize_t>(columns)};
}

inline py::array fresh(const py::dtype& dtype, std::span<const py::ssize_t> shape) {
    return py::array(dtype, std::vector<py::ssize_t>(shape.begin(), shape.end()));
}

inline py::array_t<std::int64_t> fresh_int64(std::size_t size) {
    return py::array_t<std::int64_t>(static_cast<py::ssize_t>(size));
}

/// An int64 array with one entry per key, or a ValueError.
inline Indices as_many(py::handle value, const char* name, std::size_t size) {
    Indices found = index_array(value, name);
    if (found.values.size() != size) {
        throw py::value_error(std::string(name) + " has " + std::to_string(found.values.size()) +
                              " entries, expected " + std::to_string(size) + ", as many as keys");
    }
    return found;
}

void bind_table_rows(py::class_<Table>& table);
void bind_table_snapshot(py::module_& m);
void bind_table_blocks(py::module_& m);

}  // namespace windeck
