// A pool of aligned memory slabs for batches.
//
// take_slab() returns a slab that is not in use, give_slab() returns it to the pool. A free slab
// keeps its pages, so a loop that takes and gives similar sizes neither allocates nor faults pages.
// Slabs that were free during the last 16,384 takes are deleted: the pool holds at most the memory
// that was in use at one time during these takes.
//
// Thread-safe, with or without an interpreter. The lock is held during fork, so the pool of a child
// is consistent. The pool is never destroyed, since batches may outlive static destructors.

#pragma once

#include <cstddef>
#include <cstdint>

namespace windeck {

/// Every slab, and every array laid out in it, starts at a multiple of this.
constexpr std::size_t slab_alignment = 64;

/// `bytes` rounded up to the alignment. The caller makes sure that it does not overflow.
constexpr std::size_t aligned_size(std::size_t bytes) {
    return (bytes + slab_alignment - 1) / slab_alignment * slab_alignment;
}

struct Slab {
    std::byte* data;
    std::size_t capacity;

    // For the pool: neighbours in the list of free slabs, and the number of takes when it was
    // freed.
    Slab* newer;
    Slab* older;
    std::uint64_t returned;
};

struct PoolStats {
    std::uint64_t allocations;  // slabs allocated so far
    std::uint64_t takes;        // slabs taken so far
    std::size_t live;           // slabs in use now
    std::size_t live_bytes;
    std::size_t free;  // free slabs
    std::size_t free_bytes;
};

/// A slab of at least `bytes`. Throws std::bad_alloc.
Slab* take_slab(std::size_t bytes);

/// Returns a slab to the pool.
void give_slab(Slab* slab) noexcept;

/// Deletes all free slabs.
void trim_pool() noexcept;

PoolStats pool_stats() noexcept;

}  // namespace windeck
