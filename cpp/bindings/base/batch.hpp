// Memory of the pool for NumPy arrays.

#pragma once

#include <cstddef>

#include "bindings.hpp"
#include "windeck/base/pool.hpp"

namespace windeck {

/// Some bytes of the pool, and what arrays on them keep as their base: when the last of these is
/// gone, the memory goes back to the pool.
struct Pooled {
    std::byte* data;
    py::capsule owner;
};

inline Pooled pooled(std::size_t bytes) {
    Slab* const slab = take_slab(bytes);
    try {
        return {slab->data,
                py::capsule(slab, [](void* held) { give_slab(static_cast<Slab*>(held)); })};
    } catch (...) {
        give_slab(slab);
        throw;
    }
}

}  // namespace windeck
