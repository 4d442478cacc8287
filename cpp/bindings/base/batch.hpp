// The arrays of a batch: new ones in memory of the pool, or those that the caller passes as `out`.

#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/arrays.hpp"
#include "windeck/base/pool.hpp"

namespace windeck {

/// Memory of the pool. Arrays on it have `owner` as their base; when the last of them is deleted,
/// the memory goes back to the pool.
struct PooledMemory {
    std::byte* data;
    py::capsule owner;
};

inline PooledMemory pooled_memory(std::size_t bytes) {
    Slab* const slab = take_slab(bytes);
    try {
        return {slab->data,
                py::capsule(slab, [](void* held) { give_slab(static_cast<Slab*>(held)); })};
    } catch (...) {
        give_slab(slab);
        throw;
    }
}

/// One array of a batch.
struct BatchArray {
    py::str key;
    py::dtype dtype;
    std::vector<py::ssize_t> shape;  // the first entry stands for the rows of the batch
    std::size_t row_bytes;

    std::vector<py::ssize_t> shape_of_rows(py::ssize_t rows) const {
        std::vector<py::ssize_t> out = shape;
        out.front() = rows;
        return out;
    }
};

/// A new array of `rows` rows at `data`. As py::array's constructor, without its vectors: small
/// batches are made of arrays more than of values.
inline py::array array_in(const BatchArray& part, py::ssize_t rows, std::byte* data,
                          const py::capsule& owner) {
    constexpr std::size_t most_axes = 64;  // of NumPy 2
    Py_intptr_t shape[most_axes];
    if (part.shape.size() > most_axes) {
        throw py::value_error("a batch of " + std::to_string(part.shape.size()) +
                              " axes, of at most 64 that NumPy has");
    }
    shape[0] = rows;
    std::copy(part.shape.begin() + 1, part.shape.end(), shape + 1);
    const auto& numpy = py::detail::npy_api::get();
    auto array = py::reinterpret_steal<py::array>(numpy.PyArray_NewFromDescr_(
        numpy.PyArray_Type_, part.dtype.inc_ref().ptr(), static_cast<int>(part.shape.size()), shape,
        nullptr, data, py::detail::npy_api::NPY_ARRAY_WRITEABLE_, nullptr));
    if (!array) throw py::error_already_set();
    numpy.PyArray_SetBaseObject_(array.ptr(), owner.inc_ref().ptr());
    return array;
}

/// New arrays of `rows` rows in one slab, each at a multiple of 64 bytes. Throws std::bad_alloc.
inline std::vector<py::array> new_batch(const std::vector<BatchArray>& parts, py::ssize_t rows) {
    const auto count = static_cast<std::size_t>(rows);
    std::size_t total = 0;
    for (const BatchArray& part : parts) {
        std::size_t bytes = 0;
        if (__builtin_mul_overflow(part.row_bytes, count, &bytes) || bytes > PTRDIFF_MAX / 2 ||
            __builtin_add_overflow(total, aligned_size(bytes), &total)) {
            throw std::bad_alloc();
        }
    }
    auto [data, owner] = pooled_memory(total);
    std::vector<py::array> arrays;
    arrays.reserve(parts.size());
    for (const BatchArray& part : parts) {
        arrays.push_back(array_in(part, rows, data, owner));
        data += aligned_size(part.row_bytes * count);
    }
    return arrays;
}

/// The arrays of `out`, in the order of `parts`, all checked before any is written to. `inputs` are
/// the memory that they must not overlap.
inline std::vector<py::array> checked_batch(py::handle out, const std::vector<BatchArray>& parts,
                                            py::ssize_t rows, const std::vector<Extent>& inputs) {
    if (!py::isinstance<py::dict>(out)) {
        throw py::type_error("out is of type " + type_name(out) + ", expected a dict of arrays");
    }
    const auto dict = py::reinterpret_borrow<py::dict>(out);
    std::vector<py::array> arrays;
    std::vector<Extent> written;
    for (const BatchArray& part : parts) {
        const std::string name = "out['" + text(part.key) + "']";
        if (!dict.contains(part.key)) {
            throw py::key_error(name + " is missing, expected an array for every key");
        }
        arrays.push_back(out_array(dict[part.key], part.dtype, part.shape_of_rows(rows), name));
        written.push_back(extent(arrays.back(), name));
    }
    for (const auto& [key, value] : dict) {
        const auto is_this = [&](const BatchArray& part) { return part.key.equal(key); };
        if (std::ranges::none_of(parts, is_this)) {
            throw py::key_error("out holds the key '" + text(key) +
                                "', which the batch does not have");
        }
    }
    require_disjoint(std::move(written), inputs);
    return arrays;
}

/// The dict of a batch.
inline py::dict batch_dict(const std::vector<BatchArray>& parts, std::vector<py::array>&& arrays) {
    py::dict batch;
    for (std::size_t i = 0; i < parts.size(); ++i)
        batch[parts[i].key] = std::move(arrays[i]);
    return batch;
}

}  // namespace windeck
