#include "windeck/base/pool.hpp"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace windeck {
namespace {

constexpr std::uint64_t max_idle_takes = 16384;  // takes after which a free slab is deleted
constexpr std::size_t page = 4096;
constexpr std::size_t huge_page = std::size_t{2} << 20;

/// Sizes come in eight steps an octave, at most 12.5 % above what was asked for, so that batches of
/// nearly the same size share slabs.
std::size_t capacity_for(std::size_t bytes) {
    if (bytes > PTRDIFF_MAX) throw std::bad_alloc();
    bytes = std::max(bytes, page);
    const std::size_t step = std::max(std::bit_floor(bytes) / 8, page);
    return (bytes + step - 1) / step * step;
}

Slab* new_slab(std::size_t capacity) {
    const std::size_t alignment = capacity >= 2 * huge_page ? huge_page : page;
    // The form that returns null: under the sanitizers any other form aborts on failure.
    auto* const data = static_cast<std::byte*>(
        ::operator new(capacity, std::align_val_t(alignment), std::nothrow));
    if (data == nullptr) throw std::bad_alloc();
#ifdef __linux__
    // A hint, for fewer page faults at first use and fewer TLB misses.
    if (alignment == huge_page) (void)madvise(data, capacity, MADV_HUGEPAGE);
#endif
    try {
        return new Slab{data, capacity, nullptr, nullptr, 0};
    } catch (...) {
        ::operator delete(data, std::align_val_t(alignment));
        throw;
    }
}

void delete_slabs(Slab* slab) noexcept {
    while (slab != nullptr) {
        Slab* const next = slab->older;
        const std::size_t alignment = slab->capacity >= 2 * huge_page ? huge_page : page;
        ::operator delete(slab->data, std::align_val_t(alignment));
        delete slab;
        slab = next;
    }
}

/// The free slabs, newest first.
class Pool {
  public:
    Slab* take(std::size_t bytes) {
        const std::size_t capacity = capacity_for(bytes);
        {
            const std::lock_guard lock(mutex_);
            Slab* slab = newest_;
            while (slab != nullptr && slab->capacity != capacity)
                slab = slab->older;
            if (slab != nullptr) {
                unlink(slab);
                hand_out(capacity);
                return slab;
            }
        }
        Slab* const slab = allocate(capacity);
        const std::lock_guard lock(mutex_);
        ++stats_.allocations;
        hand_out(capacity);
        return slab;
    }

    void give(Slab* slab) noexcept {
        Slab* stale = nullptr;
        {
            const std::lock_guard lock(mutex_);
            --stats_.live;
            stats_.live_bytes -= slab->capacity;
            link(slab);
            while (oldest_->returned + max_idle_takes < stats_.takes)
                stale = unlink_to(stale);
        }
        delete_slabs(stale);
    }

    void trim() noexcept {
        Slab* all = nullptr;
        {
            const std::lock_guard lock(mutex_);
            while (oldest_ != nullptr)
                all = unlink_to(all);
        }
        delete_slabs(all);
    }

    PoolStats stats() noexcept {
        const std::lock_guard lock(mutex_);
        return stats_;
    }

    void lock() { mutex_.lock(); }
    void unlock() { mutex_.unlock(); }

  private:
    /// Called without the lock. Deletes the free slabs and tries again before it fails.
    Slab* allocate(std::size_t capacity) {
        try {
            return new_slab(capacity);
        } catch (const std::bad_alloc&) {
            trim();
            return new_slab(capacity);
        }
    }

    void hand_out(std::size_t capacity) {
        ++stats_.takes;
        ++stats_.live;
        stats_.live_bytes += capacity;
    }

    void link(Slab* slab) {
        slab->returned = stats_.takes;
        slab->newer = nullptr;
        slab->older = newest_;
        (newest_ != nullptr ? newest_->newer : oldest_) = slab;
        newest_ = slab;
        ++stats_.free;
        stats_.free_bytes += slab->capacity;
    }

    void unlink(Slab* slab) {
        (slab->newer != nullptr ? slab->newer->older : newest_) = slab->older;
        (slab->older != nullptr ? slab->older->newer : oldest_) = slab->newer;
        --stats_.free;
        stats_.free_bytes -= slab->capacity;
    }

    /// Moves the oldest free slab to the front of a list; returns the list.
    Slab* unlink_to(Slab* list) {
        Slab* const slab = oldest_;
        unlink(slab);
        slab->older = list;
        return slab;
    }

    std::mutex mutex_;
    Slab* newest_ = nullptr;
    Slab* oldest_ = nullptr;
    PoolStats stats_{};
};

/// Never destroyed; made at load, before there can be threads.
Pool* const instance = new Pool;

[[maybe_unused]] const int registered = pthread_atfork(
    [] { instance->lock(); }, [] { instance->unlock(); }, [] { instance->unlock(); });

}  // namespace

Slab* take_slab(std::size_t bytes) {
    return instance->take(bytes);
}

void give_slab(Slab* slab) noexcept {
    instance->give(slab);
}

void trim_pool() noexcept {
    instance->trim();
}

PoolStats pool_stats() noexcept {
    return instance->stats();
}

}  // namespace windeck
