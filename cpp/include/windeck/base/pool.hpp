// Memory of batches: aligned slabs that come back when the last user is gone, and are used again.
//
// take() hands out a slab that nobody else holds, give() takes it back; a slab is never handed
// out twice at once. A slab given back keeps its pages, so that a loop which takes and gives alike
// sizes allocates nothing and faults no pages. Slabs that no one has asked for during the last
// 16,384 takes are freed: what the pool keeps is never more than what was in use at once in that
// time.
//
// Both calls are thread-safe, from any thread, with or without an interpreter. The lock is held
// through fork, so a child finds the pool whole whatever its parent's other threads were doing.
// The pool is never destroyed: batches may outlive static destructors.

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

    // The pool's own: neighbours in its list, and when the slab came back.
    Slab* newer;
    Slab* older;
    std::uint64_t returned;
};

struct PoolStats {
    std::uint64_t allocations;  // slabs ever asked of the system
    std::uint64_t takes;        // slabs ever handed out
    std::size_t live;           // slabs in use now
    std::size_t live_bytes;
    std::size_t free;  // slabs waiting
    std::size_t free_bytes;
};

/// A slab of at least `bytes`. Throws std::bad_alloc.
Slab* take_slab(std::size_t bytes);

/// Hands a slab back.
void give_slab(Slab* slab) noexcept;

/// Frees all slabs that wait.
void trim_pool() noexcept;

PoolStats pool_stats() noexcept;

}  // namespace windeck
