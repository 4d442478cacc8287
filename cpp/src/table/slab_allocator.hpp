// The allocator of the slabs of a table: regions of many slabs.
//
// Accesses are random, and slabs on small pages would miss the TLB. Regions grow with the number of
// slabs in use, up to 64 MiB; from 2 MiB on they are on huge pages, if the system has them. Free
// slabs are reused; a region is freed when all of its slabs are free. Thread-safe: snapshots free
// slabs from any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace windeck {

class SlabAllocator {
  public:
    struct Region;

    /// The memory of a slab, and its region.
    struct Allocation {
        std::byte* data;
        Region* region;
    };

    /// Slabs of `bytes` each, a multiple of 64.
    explicit SlabAllocator(std::size_t bytes);
    ~SlabAllocator();
    SlabAllocator(const SlabAllocator&) = delete;
    SlabAllocator& operator=(const SlabAllocator&) = delete;

    /// Throws std::bad_alloc.
    Allocation take();
    void give(Allocation allocation) noexcept;

  private:
    Region* add_region();
    void free_region(Region* region) noexcept;

    std::mutex mutex_;
    std::size_t bytes_;
    std::size_t in_use_ = 0;
    std::vector<Region*> open_;  // those with free memory
    std::vector<std::unique_ptr<Region>> regions_;
};

}  // namespace windeck
