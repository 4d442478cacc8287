#include "table/slab_allocator.hpp"

#include <algorithm>

#include "table/memory.hpp"

namespace windeck {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t largest = std::size_t{64} << 20;

}  // namespace

struct SlabAllocator::Region {
    Region(std::size_t slabs, std::size_t slab_bytes)
        : bytes(slabs * slab_bytes), data(big_new(bytes)) {
        try {
            free.reserve(slabs);
        } catch (...) {
            big_delete(data, bytes);
            throw;
        }
        for (std::size_t i = slabs; i-- > 0;)
            free.push_back(data + i * slab_bytes);
    }
    ~Region() { big_delete(data, bytes); }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    bool is_unused() const { return free.size() == free.capacity(); }

    std::size_t bytes;
    std::byte* data;
    std::vector<std::byte*> free;  // its capacity is the number of slabs
    std::size_t place = 0;         // in regions_
};

SlabAllocator::SlabAllocator(std::size_t bytes) : bytes_(bytes) {}

SlabAllocator::~SlabAllocator() = default;

SlabAllocator::Region* SlabAllocator::add_region() {
    // An eighth of what there is, so that small tables stay small.
    std::size_t slabs = std::max<std::size_t>(1, in_use_ / 8);
    if (slabs * bytes_ >= huge_page) {
        const std::size_t whole = std::min(slabs * bytes_, largest) / huge_page * huge_page;
        slabs = std::max<std::size_t>(1, whole / bytes_);
    }
    open_.reserve(regions_.size() + 1);  // so that giving back never asks for memory
    regions_.reserve(regions_.size() + 1);
    auto fresh = std::make_unique<Region>(slabs, bytes_);
    fresh->place = regions_.size();
    regions_.push_back(std::move(fresh));
    open_.push_back(regions_.back().get());
    return open_.back();
}

SlabAllocator::Allocation SlabAllocator::take() {
    const std::lock_guard lock(mutex_);
    Region* const region = open_.empty() ? add_region() : open_.back();
    const Allocation allocation{region->free.back(), region};
    region->free.pop_back();
    if (region->free.empty()) open_.pop_back();
    ++in_use_;
    return allocation;
}

void SlabAllocator::give(Allocation allocation) noexcept {
    const std::lock_guard lock(mutex_);
    --in_use_;
    if (allocation.region->free.empty()) open_.push_back(allocation.region);
    allocation.region->free.push_back(allocation.data);
    if (allocation.region->is_unused()) free_region(allocation.region);
}

void SlabAllocator::free_region(Region* region) noexcept {
    std::erase(open_, region);
    const std::size_t place = region->place;
    std::swap(regions_[place], regions_.back());
    regions_[place]->place = place;
    regions_.pop_back();
}

}  // namespace windeck
