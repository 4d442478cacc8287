// Where rows live: slabs of about 256 KiB that a table and its snapshots hold together.
//
// A slab has room for a power of two of rows, each a `RowHead` and `width` floats. Rows are
// numbered without gaps. A snapshot takes a reference to every slab; from then on whoever wants to
// change a slab first makes a copy of it, unless the snapshot is gone again. Slabs that a snapshot
// holds are never written to, so it may be read without a lock while the table is trained.
//
// References are counted here and not by std::shared_ptr: whether a slab is ours alone has to be
// read with acquire order, so that what its last reader did comes before what is now written, and
// shared_ptr's use_count() promises no order.

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

/// The header of a slab; heads and values follow in the same piece of memory, at distances that
/// all slabs of a store share, so that finding a row does not touch the header.
struct TableSlab {
    std::atomic<std::int64_t> holders{1};
    SlabSource::Piece piece;
    std::shared_ptr<SlabSource> source;
};

/// A counted reference to a slab.
class SlabRef {
  public:
    SlabRef() = default;
    explicit SlabRef(TableSlab* fresh) : slab_(fresh) {}
    SlabRef(const SlabRef& other) noexcept : slab_(other.slab_) {
        if (slab_ != nullptr) slab_->holders.fetch_add(1, std::memory_order_relaxed);
    }
    SlabRef(SlabRef&& other) noexcept : slab_(std::exchange(other.slab_, nullptr)) {}
    SlabRef& operator=(SlabRef other) noexcept {
        std::swap(slab_, other.slab_);
        return *this;
    }
    ~SlabRef() {
        if (slab_ != nullptr && slab_->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) drop();
    }

    std::byte* memory() const noexcept { return reinterpret_cast<std::byte*>(slab_); }
    bool alone() const noexcept { return slab_->holders.load(std::memory_order_acquire) == 1; }

  private:
    void drop() noexcept;

    TableSlab* slab_ = nullptr;
};

/// Rows as they are at one moment.
class RowView {
  public:
    RowView() = default;
    /// Rows of `width` floats, none yet.
    explicit RowView(std::size_t width);

    std::uint64_t size() const noexcept { return size_; }
    /// The number of the slab a row is in.
    std::uint64_t slab(std::uint64_t row) const noexcept { return row >> shift_; }
    const RowHead& head(std::uint64_t row) const noexcept {
        return heads(row >> shift_)[within(row)];
    }
    const float* values(std::uint64_t row) const noexcept {
        return values_of(row >> shift_) + within(row) * width_;
    }

    // Inlined by force: GCC 12 takes a function that only prefetches for one without effects.
    [[gnu::always_inline]] void prefetch_head(std::uint64_t row) const noexcept {
        __builtin_prefetch(&head(row));
    }
    [[gnu::always_inline]] void prefetch_values(std::uint64_t row,
                                                std::size_t floats) const noexcept {
        const float* const at = values(row);
        for (std::size_t i = 0; i < floats && i < 128; i += 16)
            __builtin_prefetch(at + i);
    }

  protected:
    std::size_t within(std::uint64_t row) const noexcept {
        return row & ((std::uint64_t{1} << shift_) - 1);
    }
    RowHead* heads(std::uint64_t slab) const noexcept {
        return reinterpret_cast<RowHead*>(slabs_[slab].memory() + sizeof(TableSlab));
    }
    float* values_of(std::uint64_t slab) const noexcept {
        return reinterpret_cast<float*>(slabs_[slab].memory() + values_at_);
    }

    std::vector<SlabRef> slabs_;
    std::uint64_t size_ = 0;
    std::size_t width_ = 0;
    std::size_t values_at_ = 0;
    unsigned shift_ = 0;
};

/// Rows that change.
class RowStore : public RowView {
  public:
    explicit RowStore(std::size_t width);

    /// One more row, its head zeroed, its values left as they are; returns its number. Throws
    /// std::bad_alloc, and then nothing has changed.
    std::uint64_t append();
    /// Drops the last row.
    void pop() noexcept;
    void clear() noexcept;

    /// Must be called before a row is changed: afterwards no snapshot sees what is written. Throws
    /// std::bad_alloc, and then nothing has changed.
    void own(std::uint64_t row) {
        if (shared_[row >> shift_] != 0) unshare(row >> shift_);
    }
    RowHead& head_to_change(std::uint64_t row) noexcept {
        return heads(row >> shift_)[within(row)];
    }
    float* values_to_change(std::uint64_t row) noexcept {
        return values_of(row >> shift_) + within(row) * width_;
    }

    /// Copies a row, both of which are owned by the caller.
    void move_row(std::uint64_t from, std::uint64_t to) noexcept;

    /// O(slabs).
    RowView view();

    std::size_t bytes() const noexcept;

  private:
    std::size_t slab_rows() const { return std::size_t{1} << shift_; }
    std::size_t slab_bytes() const;
    SlabRef new_slab();
    void unshare(std::uint64_t slab);

    std::shared_ptr<SlabSource> source_;
    std::vector<std::uint8_t> shared_;  // slabs that were handed out since they were last ours
};

}  // namespace windeck
