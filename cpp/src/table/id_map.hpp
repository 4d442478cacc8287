// A hash map from ids to numbers, with open addressing and linear probing in units of cache lines.
//
// Every int64 is an id; none is reserved for empty slots. A slot holds an id and a number plus one,
// so zeroed memory is an empty map. Four slots are a cache line. A search compares all four slots
// of a line without branches, since branches on the slot would be mispredicted; at a load of 0.6,
// 93 % of searches end in the first line. Deletion shifts later entries back (Knuth 6.4, algorithm
// R) and leaves no tombstones. Lines are chosen by the low bits of mix(id): the high bits are the
// bucket, which is nearly the same for all ids of a shard.
//
// Not thread-safe. Expected O(1) an operation at a load of at most 3/4.

#pragma once

#include <cstddef>
#include <cstdint>

#include "table/memory.hpp"
#include "windeck/base/hash.hpp"

namespace windeck {

inline std::uint64_t hash_id(std::int64_t id) {
    return mix(static_cast<std::uint64_t>(id));
}

class IdMap {
  public:
    static constexpr std::uint64_t absent = ~std::uint64_t{0};

    std::uint64_t size() const noexcept { return size_; }
    std::size_t bytes() const noexcept { return slots_.size() * sizeof(Slot); }

    /// Prefetches the first line of a search.
    [[gnu::always_inline]] void prefetch(std::uint64_t hash) const noexcept {
        if (!slots_.empty()) __builtin_prefetch(&slots_[home(hash)]);
    }

    /// The number of an id if it is in the first line of its search, else `absent`. Without
    /// branches.
    std::uint64_t find_in_first_line(std::int64_t id, std::uint64_t hash) const noexcept {
        return slots_.empty() ? absent : in_line(&slots_[home(hash)], id) - 1;
    }

    /// Prefetches the second line of a search.
    [[gnu::always_inline]] void prefetch_beyond(std::uint64_t hash) const noexcept {
        if (!slots_.empty()) __builtin_prefetch(&slots_[(home(hash) + line) & mask_]);
    }

    /// The number of an id, or `absent`.
    std::uint64_t find(std::int64_t id, std::uint64_t hash) const noexcept {
        if (slots_.empty()) return absent;
        for (std::uint64_t at = home(hash);; at = (at + line) & mask_) {
            const Slot* const four = &slots_[at];
            const std::uint64_t number = in_line(four, id);
            if (number != 0 || !is_full(four)) return number - 1;
        }
    }
    std::uint64_t find(std::int64_t id) const noexcept { return find(id, hash_id(id)); }

    /// Reserves memory for this many ids in all. Throws std::bad_alloc; the map is then unchanged.
    void reserve(std::uint64_t ids);

    /// Sets the number of an id, below `absent`. A new id needs reserved memory.
    void set(std::int64_t id, std::uint64_t number) noexcept;

    /// Adds an id and its number unless the map has the id; returns the number that it has then,
    /// else `absent`. Needs reserved memory.
    std::uint64_t add(std::int64_t id, std::uint64_t number, std::uint64_t hash) noexcept {
        std::uint64_t at = home(hash);
        for (;; at = (at + line) & mask_) {
            const std::uint64_t known = in_line(&slots_[at], id);
            if (known != 0) return known - 1;
            if (!is_full(&slots_[at])) break;
        }
        slots_[at + taken(&slots_[at])] = {id, number + 1};
        ++size_;
        return absent;
    }

    /// Removes an id that is in the map.
    void erase(std::int64_t id) noexcept;

    void clear() noexcept;

    /// Calls visit(id, number) for each id, in unspecified order.
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
    static constexpr std::uint64_t line = 64 / sizeof(Slot);

    /// The number (plus one) of an id in a line, 0 if it is not there.
    static std::uint64_t in_line(const Slot* four, std::int64_t id) noexcept {
        std::uint64_t number = 0;
        for (std::uint64_t i = 0; i < line; ++i) {
            // A mask by arithmetic, since compilers turn comparisons into branches.
            const auto difference = static_cast<std::uint64_t>(four[i].id ^ id);
            number |= four[i].number & (((difference | (0 - difference)) >> 63) - 1);
        }
        return number;
    }
    /// Lines are filled from their first slot on, also after deletions.
    static bool is_full(const Slot* four) noexcept { return four[line - 1].number != 0; }
    static std::uint64_t taken(const Slot* four) noexcept {
        std::uint64_t count = 0;
        for (std::uint64_t i = 0; i < line; ++i)
            count += four[i].number != 0 ? 1U : 0U;
        return count;
    }

    /// The first slot of a search.
    std::uint64_t home(std::uint64_t hash) const noexcept { return hash & mask_ & ~(line - 1); }
    /// Fills the first empty slot, without branches on the slot of a line.
    void put(std::int64_t id, std::uint64_t number, std::uint64_t hash) noexcept {
        std::uint64_t at = home(hash);
        while (is_full(&slots_[at]))
            at = (at + line) & mask_;
        slots_[at + taken(&slots_[at])] = {id, number};
    }

    BigArray<Slot> slots_;
    std::uint64_t mask_ = 0;
    std::uint64_t size_ = 0;
};

}  // namespace windeck
