// The memory of rows: slabs of about 256 KiB, shared copy-on-write by a table and its snapshots.
//
// A slab has room for a power of two of rows, each a `RowHead` and `row_bytes` of values. Rows are
// numbered without gaps. A snapshot takes a reference to every slab; while it holds a slab, the
// table copies the slab before it changes a row. Slabs of a snapshot are never written to, so it is
// read without a lock while the table is trained.
//
// References are counted here instead of by std::shared_ptr: the test for a unique reference needs
// acquire order, so that reads of the last other holder happen before our writes, and use_count()
// of shared_ptr has no such order.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "table/slab_allocator.hpp"

namespace windeck {

struct RowHead {
    std::int64_t id;
    std::int64_t version;    // clock of the last update; 0: none
    std::int64_t frequency;  // times looked up
    std::int64_t seen;       // clock + 1 at the last of them
};

/// The header of a slab; heads and values follow in the same memory, at distances
/// that all slabs of a store share, so that finding a row does not touch the header.
struct TableSlab {
    std::atomic<std::int64_t> references{1};
    SlabAllocator::Allocation allocation;
    std::shared_ptr<SlabAllocator> allocator;
};

/// A counted reference to a slab.
class SlabRef {
  public:
    SlabRef() = default;
    explicit SlabRef(TableSlab* fresh) : slab_(fresh) {}
    SlabRef(const SlabRef& other) noexcept : slab_(other.slab_) {
        if (slab_ != nullptr) slab_->references.fetch_add(1, std::memory_order_relaxed);
    }
    SlabRef(SlabRef&& other) noexcept : slab_(std::exchange(other.slab_, nullptr)) {}
    SlabRef& operator=(SlabRef other) noexcept {
        std::swap(slab_, other.slab_);
        return *this;
    }
    ~SlabRef() {
        if (slab_ != nullptr && slab_->references.fetch_sub(1, std::memory_order_acq_rel) == 1)
            release();
    }

    std::byte* memory() const noexcept { return reinterpret_cast<std::byte*>(slab_); }
    bool is_unique() const noexcept {
        return slab_->references.load(std::memory_order_acquire) == 1;
    }

  private:
    void release() noexcept;

    TableSlab* slab_ = nullptr;
};

/// Rows at one time, read-only.
class RowView {
  public:
    RowView() = default;
    /// Rows with `row_bytes` of values, none yet.
    explicit RowView(std::size_t row_bytes);

    std::uint64_t size() const noexcept { return size_; }
    /// The number of the slab a row is in.
    std::uint64_t slab(std::uint64_t row) const noexcept { return row >> shift_; }
    const RowHead& head(std::uint64_t row) const noexcept {
        return heads(row >> shift_)[within(row)];
    }
    const std::byte* values(std::uint64_t row) const noexcept {
        return values_of(row >> shift_) + within(row) * row_bytes_;
    }

    // Always inlined: GCC 12 treats a function that only prefetches as without effect.
    [[gnu::always_inline]] void prefetch_head(std::uint64_t row) const noexcept {
        __builtin_prefetch(&head(row));
    }
    [[gnu::always_inline]] void prefetch_values(std::uint64_t row,
                                                std::size_t bytes) const noexcept {
        const std::byte* const at = values(row);
        for (std::size_t i = 0; i < bytes && i < 512; i += 64)
            __builtin_prefetch(at + i);
    }

  protected:
    std::size_t within(std::uint64_t row) const noexcept {
        return row & ((std::uint64_t{1} << shift_) - 1);
    }
    RowHead* heads(std::uint64_t slab) const noexcept {
        return reinterpret_cast<RowHead*>(slabs_[slab].memory() + sizeof(TableSlab));
    }
    std::byte* values_of(std::uint64_t slab) const noexcept {
        return slabs_[slab].memory() + values_at_;
    }

    std::vector<SlabRef> slabs_;
    std::uint64_t size_ = 0;
    std::size_t row_bytes_ = 0;
    std::size_t values_at_ = 0;
    unsigned shift_ = 0;
};

/// Rows that can be changed.
class RowStore : public RowView {
  public:
    explicit RowStore(std::size_t row_bytes);

    /// Appends a row with a zeroed head and uninitialised values; returns its number. Throws
    /// std::bad_alloc; the store is then unchanged.
    std::uint64_t append();
    /// The same for several rows, with heads that are not initialised; returns the first number.
    std::uint64_t append(std::uint64_t count);
    /// Removes the last rows, so that `size` are left.
    void shrink(std::uint64_t size) noexcept;
    void clear() noexcept;

    /// Must be called before a row is changed: copies its slab if a snapshot holds it. Throws
    /// std::bad_alloc; the store is then unchanged.
    void make_writable(std::uint64_t row) {
        if (shared_[row >> shift_] != 0) copy_shared_slab(row >> shift_);
    }
    RowHead& head_to_change(std::uint64_t row) noexcept {
        return heads(row >> shift_)[within(row)];
    }
    std::byte* values_to_change(std::uint64_t row) noexcept {
        return values_of(row >> shift_) + within(row) * row_bytes_;
    }

    /// Copies the values of consecutive rows from `from`; make_writable() must have been called.
    void write_values(std::uint64_t first, std::uint64_t count, const std::byte* from) noexcept;

    /// Copies a row; make_writable() must have been called for both.
    void move_row(std::uint64_t from, std::uint64_t to) noexcept;

    /// O(slabs).
    RowView view();

    std::size_t bytes() const noexcept;

  private:
    std::size_t slab_rows() const { return std::size_t{1} << shift_; }
    std::size_t slab_bytes() const;
    SlabRef new_slab();
    void copy_shared_slab(std::uint64_t slab);

    std::shared_ptr<SlabAllocator> allocator_;
    std::vector<std::uint8_t> shared_;  // by slab: 1 if a snapshot may hold it
};

}  // namespace windeck
