#include "table/slabs.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

namespace windeck {
namespace {

constexpr std::size_t about = std::size_t{256} << 10;
constexpr std::size_t line = 64;

constexpr std::size_t rounded(std::size_t bytes) {
    return (bytes + line - 1) / line * line;
}

/// log2 of the rows of a slab: a power of two that fits, and at least one.
unsigned shift_for(std::size_t row_bytes) {
    const std::size_t row = sizeof(RowHead) + row_bytes;
    return static_cast<unsigned>(std::bit_width(std::max<std::size_t>(about / row, 1)) - 1);
}

}  // namespace

void SlabRef::release() noexcept {
    const std::shared_ptr<SlabAllocator> allocator = std::move(slab_->allocator);
    const SlabAllocator::Allocation allocation = slab_->allocation;
    slab_->~TableSlab();
    allocator->give(allocation);
}

RowView::RowView(std::size_t row_bytes) : row_bytes_(row_bytes), shift_(shift_for(row_bytes)) {
    values_at_ = rounded(sizeof(TableSlab) + (sizeof(RowHead) << shift_));
}

RowStore::RowStore(std::size_t row_bytes)
    : RowView(row_bytes), allocator_(std::make_shared<SlabAllocator>(slab_bytes())) {}

std::size_t RowStore::slab_bytes() const {
    return rounded(values_at_ + slab_rows() * row_bytes_);
}

SlabRef RowStore::new_slab() {
    const SlabAllocator::Allocation allocation = allocator_->take();
    return SlabRef(::new (allocation.data) TableSlab{
        .references{1}, .allocation = allocation, .allocator = allocator_});
}

std::uint64_t RowStore::append() {
    const std::uint64_t row = append(1);
    head_to_change(row) = RowHead{};
    return row;
}

std::uint64_t RowStore::append(std::uint64_t count) {
    const std::uint64_t first = size_;
    if (count == 0) return first;
    const std::uint64_t end = ((first + count - 1) >> shift_) + 1;  // the slab after the last row's
    if (shared_.size() < end) shared_.resize(end, 0);  // more than slabs_ if what follows threw
    while (slabs_.size() < end) {
        SlabRef fresh = new_slab();
        slabs_.push_back(std::move(fresh));
    }
    for (std::uint64_t slab = first >> shift_; slab < end; ++slab) {
        if (shared_[slab] != 0) copy_shared_slab(slab);
    }
    size_ += count;
    return first;
}

void RowStore::shrink(std::uint64_t size) noexcept {
    size_ = size;
    // One slab is kept in reserve, so that rows that come and go at its edge cost nothing.
    while (slabs_.size() > (size_ >> shift_) + 2) {
        slabs_.pop_back();
        shared_.pop_back();
    }
}

void RowStore::clear() noexcept {
    slabs_.clear();
    shared_.clear();
    size_ = 0;
}

void RowStore::copy_shared_slab(std::uint64_t slab) {
    if (!slabs_[slab].is_unique()) {
        // Rows after the last one were never written to.
        const std::uint64_t first = std::min(slab << shift_, size_);
        const std::size_t used = std::min<std::size_t>(size_ - first, slab_rows());
        SlabRef copy = new_slab();
        const std::byte* const from = slabs_[slab].memory();
        std::memcpy(copy.memory() + sizeof(TableSlab), from + sizeof(TableSlab),
                    used * sizeof(RowHead));
        std::memcpy(copy.memory() + values_at_, from + values_at_, used * row_bytes_);
        slabs_[slab] = std::move(copy);
    }
    shared_[slab] = 0;
}

void RowStore::write_values(std::uint64_t first, std::uint64_t count,
                            const std::byte* from) noexcept {
    for (std::uint64_t row = first; row_bytes_ != 0 && row < first + count;) {
        const std::uint64_t rows = std::min(first + count - row, slab_rows() - within(row));
        std::memcpy(values_to_change(row), from, rows * row_bytes_);
        from += rows * row_bytes_;
        row += rows;
    }
}

void RowStore::move_row(std::uint64_t from, std::uint64_t to) noexcept {
    head_to_change(to) = head(from);
    if (row_bytes_ != 0) std::memcpy(values_to_change(to), values(from), row_bytes_);
}

RowView RowStore::view() {
    RowView taken(*this);
    std::ranges::fill(shared_, std::uint8_t{1});
    return taken;
}

std::size_t RowStore::bytes() const noexcept {
    return slabs_.size() * slab_bytes();
}

}  // namespace windeck
