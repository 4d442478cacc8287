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
#include <utility>
#include <vector>

namespace windeck {

struct RowHead {
    std::int64_t id;
    std::int64_t version;    // clock of the last update; 0: none
    std::int64_t frequency;  // times looked up
    std::int64_t seen;       // clock + 1 at the last of them
};

/// The header of a slab; heads and values follow in the same piece of memory.
struct TableSlab {
    std::atomic<std::int64_t> holders{1};
    std::size_t bytes;
    RowHead* heads;
    float* values;
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

    TableSlab* operator->() const noexcept { return slab_; }
    bool alone() const noexcept { return slab_->holders.load(std::memory_order_acquire) == 1; }

  private:
    void drop() noexcept;

    TableSlab* slab_ = nullptr;
};

/// Rows as they are at one moment.
class RowView {
  public:
    RowView() = default;
    RowView(std::vector<SlabRef> slabs, std::uint64_t size, std::size_t width, unsigned shift)
        : slabs_(std::move(slabs)), size_(size), width_(width), shift_(shift) {}

    std::uint64_t size() const noexcept { return size_; }
    const RowHead& head(std::uint64_t row) const noexcept {
        return slabs_[row >> shift_]->heads[within(row)];
    }
    const float* values(std::uint64_t row) const noexcept {
        return slabs_[row >> shift_]->values + within(row) * width_;
    }

    void prefetch_head(std::uint64_t row) const noexcept { __builtin_prefetch(&head(row)); }
    void prefetch_values(std::uint64_t row, std::size_t floats) const noexcept {
        const float* const at = values(row);
        for (std::size_t i = 0; i < floats && i < 128; i += 16)
            __builtin_prefetch(at + i);
    }

  protected:
    std::size_t within(std::uint64_t row) const noexcept {
        return row & ((std::uint64_t{1} << shift_) - 1);
    }

    std::vector<SlabRef> slabs_;
    std::uint64_t size_ = 0;
    std::size_t width_ = 0;
    unsigned shift_ = 0;
};

/// Rows that change.
class RowStore : public RowView {
  public:
    /// Rows of `width` floats, which may be none.
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
        return slabs_[row >> shift_]->heads[within(row)];
    }
    float* values_to_change(std::uint64_t row) noexcept {
        return slabs_[row >> shift_]->values + within(row) * width_;
    }

    /// Copies a row, both of which are owned by the caller.
    void move_row(std::uint64_t from, std::uint64_t to) noexcept;

    /// O(slabs).
    RowView view();

    std::size_t bytes() const noexcept;

  private:
    void unshare(std::uint64_t slab);

    std::vector<std::uint8_t> shared_;  // slabs that were handed out since they were last ours
};

}  // namespace windeck
