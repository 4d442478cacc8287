// From ids to numbers: open addressing with linear probing.
//
// Every int64 is an id; no id stands for "empty". A slot holds a key and a number plus one, so
// that zeroed memory is an empty map. Deletion shifts later entries back (Knuth 6.4, algorithm R),
// which leaves no tombstones behind. Slots are chosen by the low bits of mix(id): the high ones
// are its bucket, and in a shard's map all of those are alike.
//
// Not thread-safe. Expected O(1) an operation at a load of at most 3/4.

#pragma once

#include <cstddef>
#include <cstdint>

#include "table_memory.hpp"
#include "windeck/hash.hpp"

namespace windeck {

inline std::uint64_t hash_id(std::int64_t id) {
    return mix(static_cast<std::uint64_t>(id));
}

class IdMap {
  public:
    static constexpr std::uint64_t absent = ~std::uint64_t{0};

    std::uint64_t size() const noexcept { return size_; }
    std::size_t bytes() const noexcept { return slots_.size() * sizeof(Slot); }

    /// Asks the processor for the slot where a search will begin.
    void prefetch(std::uint64_t hash) const noexcept {
        if (!slots_.empty()) __builtin_prefetch(&slots_[hash & mask_]);
    }

    /// The number of an id, or `absent`.
    std::uint64_t find(std::int64_t id, std::uint64_t hash) const noexcept {
        if (slots_.empty()) return absent;
        for (std::uint64_t at = hash & mask_;; at = (at + 1) & mask_) {
            const Slot& slot = slots_[at];
            if (slot.number == 0 || slot.id == id) return slot.number - 1;
        }
    }
    std::uint64_t find(std::int64_t id) const noexcept { return find(id, hash_id(id)); }

    /// Room for this many ids in all. Throws std::bad_alloc, and then nothing has changed.
    void reserve(std::uint64_t ids);

    /// Gives an id a number below `absent`. There has to be room for one more where it is new.
    void set(std::int64_t id, std::uint64_t number) noexcept;

    /// Forgets an id that is there.
    void erase(std::int64_t id) noexcept;

    void clear() noexcept;

    /// Calls visit(id, number) for each, in an order that means nothing.
    template <typename Visit>
    void each(const Visit& visit) const {
        for (std::size_t at = 0; at < slots_.size(); ++at) {
            if (slots_[at].number != 0) visit(slots_[at].id, slots_[at].number - 1);
        }
    }

  private:
    struct Slot {
        std::int64_t id;
        std::uint64_t number;  // plus one; 0: empty
    };

    void place(std::int64_t id, std::uint64_t number) noexcept;

    BigArray<Slot> slots_;
    std::uint64_t mask_ = 0;
    std::uint64_t size_ = 0;
};

}  // namespace windeck
