#include "table_slabs.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "table_memory.hpp"

namespace windeck {
namespace {

constexpr std::size_t slab_bytes = std::size_t{256} << 10;
constexpr std::size_t line = 64;

constexpr std::size_t rounded(std::size_t bytes) {
    return (bytes + line - 1) / line * line;
}

/// log2 of the rows of a slab: as many as fit into `slab_bytes`, and at least one.
unsigned shift_for(std::size_t width) {
    const std::size_t row = sizeof(RowHead) + width * sizeof(float);
    return static_cast<unsigned>(std::bit_width(std::max<std::size_t>(slab_bytes / row, 1)) - 1);
}

TableSlab* new_slab(std::size_t rows, std::size_t width) {
    const std::size_t heads = rounded(sizeof(TableSlab));
    const std::size_t values = heads + rounded(rows * sizeof(RowHead));
    const std::size_t bytes = values + rows * width * sizeof(float);
    std::byte* const data = big_new(bytes);
    auto* const slab =
        ::new (data) TableSlab{.holders{1}, .bytes = bytes, .heads = nullptr, .values = nullptr};
    slab->heads = reinterpret_cast<RowHead*>(data + heads);
    slab->values = reinterpret_cast<float*>(data + values);
    return slab;
}

}  // namespace

void SlabRef::drop() noexcept {
    const std::size_t bytes = slab_->bytes;
    slab_->~TableSlab();
    big_delete(reinterpret_cast<std::byte*>(slab_), bytes);
}

RowStore::RowStore(std::size_t width) : RowView({}, 0, width, shift_for(width)) {}

std::uint64_t RowStore::append() {
    const std::uint64_t slab = size_ >> shift_;
    if (slab == slabs_.size()) {
        if (shared_.size() == slab) shared_.push_back(0);  // there already if what follows threw
        SlabRef fresh(new_slab(std::size_t{1} << shift_, width_));
        slabs_.push_back(std::move(fresh));
    }
    own(size_);
    head_to_change(size_) = RowHead{};
    return size_++;
}

void RowStore::pop() noexcept {
    --size_;
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

void RowStore::unshare(std::uint64_t slab) {
    if (!slabs_[slab].alone()) {
        const std::size_t rows = std::size_t{1} << shift_;
        // Rows behind the last one were never written to.
        const std::size_t used = std::min<std::size_t>(size_ - (slab << shift_), rows);
        SlabRef copy(new_slab(rows, width_));
        std::memcpy(copy->heads, slabs_[slab]->heads, used * sizeof(RowHead));
        if (width_ != 0) {
            std::memcpy(copy->values, slabs_[slab]->values, used * width_ * sizeof(float));
        }
        slabs_[slab] = std::move(copy);
    }
    shared_[slab] = 0;
}

void RowStore::move_row(std::uint64_t from, std::uint64_t to) noexcept {
    head_to_change(to) = head(from);
    if (width_ != 0) std::memcpy(values_to_change(to), values(from), width_ * sizeof(float));
}

RowView RowStore::view() {
    RowView taken(*this);
    std::ranges::fill(shared_, std::uint8_t{1});
    return taken;
}

std::size_t RowStore::bytes() const noexcept {
    return slabs_.empty() ? 0 : slabs_.size() * slabs_[0]->bytes;
}

}  // namespace windeck
