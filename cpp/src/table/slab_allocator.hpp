// Where the slabs of a table come from: many of them out of one large piece of memory.
//
// Ids come in random order, so each one would miss the TLB if slabs lay on small pages. Regions
// grow with what is in use, to 64 MiB; from 2 MiB on they lie on huge pages, where the system
// grants them. Slabs that come back are handed out again; a region is freed when all of its slabs
// are back. Thread-safe: snapshots give slabs back from any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace windeck {

class SlabSource {
  public:
    struct Region;

    /// A slab's memory, and the region it has to go back to.
    struct Piece {
        std::byte* data;
        Region* region;
    };

    /// Slabs of `bytes` each, a multiple of 64.
    explicit SlabSource(std::size_t bytes);
    ~SlabSource();
    SlabSource(const SlabSource&) = delete;
    SlabSource& operator=(const SlabSource&) = delete;

    /// Throws std::bad_alloc.
    Piece take();
    void give(Piece piece) noexcept;

  private:
    Region* add_region();
    void forget(Region* region) noexcept;

    std::mutex mutex_;
    std::size_t bytes_;
    std::size_t in_use_ = 0;
    std::vector<Region*> open_;  // those with a piece to give
    std::vector<std::unique_ptr<Region>> regions_;
};

}  // namespace windeck
