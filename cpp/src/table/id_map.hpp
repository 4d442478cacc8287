// From ids to numbers: open addressing with linear probing that begins at cache lines.
//
// Every int64 is an id; no id stands for "empty". A slot holds a key and a number plus one, so
// that zeroed memory is an empty map. Four slots are a cache line, and a search begins with the
// first of its line: it looks at all four at once, without asking which it is, for at which slot a
// search ends is anybody's guess. At a load of 0.6, 93 in 100 end in their first line. Deletion
// shifts later entries back (Knuth 6.4, algorithm R), which leaves no tombstones behind. Lines are
// chosen by the low bits of mix(id): the high ones are its bucket, and in a shard's map all of
// those are alike.
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

    /// Asks the processor for the slot where a search will begin.
    [[gnu::always_inline]] void prefetch(std::uint64_t hash) const noexcept {
        if (!slots_.empty()) __builtin_prefetch(&slots_[home(hash)]);
    }

    /// The number of an id where it is in the first line of its search, or `absent`. There are no
    /// branches in it.
    std::uint64_t glance(std::int64_t id, std::uint64_t hash) const noexcept {
        return slots_.empty() ? absent : in_line(&slots_[home(hash)], id) - 1;
    }

    /// Asks for what a search goes on with after its first line.
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

    /// Room for this many ids in all. Throws std::bad_alloc, and then nothing has changed.
    void reserve(std::uint64_t ids);

    /// Gives an id a number below `absent`. There has to be room for one more where it is new.
    void set(std::int64_t id, std::uint64_t number) noexcept;

    /// The same for an id that is not there, which nobody looks for then.
    void add(std::int64_t id, std::uint64_t number, std::uint64_t hash) noexcept {
        ++size_;
        put(id, number + 1, hash);
    }

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
    static constexpr std::uint64_t line = 64 / sizeof(Slot);

    /// The number of an id in a line, 0 where it is not there.
    static std::uint64_t in_line(const Slot* four, std::int64_t id) noexcept {
        std::uint64_t number = 0;
        for (std::uint64_t i = 0; i < line; ++i) {
            // All bits, or none: by arithmetic, since compilers make branches of comparisons.
            const auto difference = static_cast<std::uint64_t>(four[i].id ^ id);
            number |= four[i].number & (((difference | (0 - difference)) >> 63) - 1);
        }
        return number;
    }
    /// Lines fill up from their first slot on, and deletion keeps it so: searches begin with first
    /// slots only, and pass no empty one.
    static bool is_full(const Slot* four) noexcept { return four[line - 1].number != 0; }
    static std::uint64_t taken(const Slot* four) noexcept {
        std::uint64_t count = 0;
        for (std::uint64_t i = 0; i < line; ++i)
            count += four[i].number != 0 ? 1U : 0U;
        return count;
    }

    /// Where a search begins.
    std::uint64_t home(std::uint64_t hash) const noexcept { return hash & mask_ & ~(line - 1); }
    /// Fills the first empty slot. In it, too, no branch asks which of a line that is.
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
