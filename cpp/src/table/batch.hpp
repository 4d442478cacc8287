// Batched access to the entries of ids, with prefetching, so that many cache misses overlap.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "table/table_state.hpp"

namespace windeck {

/// The ids that are prefetched together, an id block; the memory of some id blocks fits the first
/// two cache levels.
inline constexpr std::size_t id_block = 64;

/// Copies a row by cache lines: for short rows, a call of std::memcpy would take half of the time.
inline void copy_row(std::byte* to, const std::byte* from, std::size_t bytes) {
    constexpr std::size_t step = 64;  // a cache line
    const std::byte* const lines_end = from + bytes / step * step;
    for (; from != lines_end; from += step, to += step)
        std::memcpy(to, from, step);
    // Of what is left, the halves of a line, a quarter and so on, by the bits of its size.
    for (std::size_t part = step / 2; part >= 2; part /= 2) {
        if ((bytes & part) == 0) continue;
        std::memcpy(to, from, part);
        from += part;
        to += part;
    }
}

/// Finds the locations of all ids.
///
/// A pipeline of three stages: one block prefetches the first lines of its searches, the block
/// before it searches these lines and prefetches the second ones, and the block before that
/// finishes the few searches that are still open. All memory is prefetched one block before its
/// use.
inline void find_places(const IdMap& map, std::span<const std::int64_t> ids,
                        EntryLocation* places) {
    std::uint64_t hashes[2][id_block];
    std::size_t open[2][id_block];  // searches that did not end
    std::size_t opened[2] = {};
    const std::size_t blocks = (ids.size() + id_block - 1) / id_block;
    const auto end_of = [&](std::size_t b) { return std::min(ids.size(), (b + 1) * id_block); };
    for (std::size_t b = 0; b < blocks + 2; ++b) {
        const std::size_t now = b % 2;
        if (b >= 2) {
            for (std::size_t k = 0; k < opened[now]; ++k)
                places[open[now][k]] = EntryLocation{map.find(ids[open[now][k]])};
        }
        if (b < blocks) {
            for (std::size_t i = b * id_block; i < end_of(b); ++i) {
                const std::uint64_t hash = hash_id(ids[i]);
                hashes[now][i % id_block] = hash;
                map.prefetch(hash);
            }
        }
        if (b >= 1 && b <= blocks) {
            std::size_t count = 0;
            for (std::size_t i = (b - 1) * id_block; i < end_of(b - 1); ++i) {
                places[i] =
                    EntryLocation{map.find_in_first_line(ids[i], hashes[1 - now][i % id_block])};
                open[1 - now][count] = i;
                count += places[i].is_absent() ? 1U : 0U;
            }
            for (std::size_t k = 0; k < count; ++k)
                map.prefetch_beyond(hashes[1 - now][open[1 - now][k] % id_block]);
            opened[1 - now] = count;
        }
    }
}

/// Calls visit(i, near(i, place)) for the ids in order, with near() one block before visit(): it
/// prefetches the memory that visit() uses and returns its address. The map must not change
/// meanwhile.
template <typename Near, typename Visit>
void for_each_location(const IdMap& map, std::span<const std::int64_t> ids, const Near& near,
                       const Visit& visit) {
    constexpr std::size_t ids_at_once = 8 * id_block;
    EntryLocation places[ids_at_once];
    decltype(near(std::size_t{}, EntryLocation{})) known[2][id_block];
    for (std::size_t begin = 0; begin < ids.size(); begin += ids_at_once) {
        const auto some = ids.subspan(begin, std::min(ids_at_once, ids.size() - begin));
        find_places(map, some, places);
        const std::size_t blocks = (some.size() + id_block - 1) / id_block;
        const auto end_of = [&](std::size_t b) {
            return std::min(some.size(), (b + 1) * id_block);
        };
        for (std::size_t b = 0; b <= blocks; ++b) {
            for (std::size_t i = b * id_block; b < blocks && i < end_of(b); ++i)
                known[b % 2][i % id_block] = near(begin + i, places[i]);
            for (std::size_t i = (b - 1) * id_block; b != 0 && i < end_of(b - 1); ++i)
                visit(begin + i, known[(b - 1) % 2][i % id_block]);
        }
    }
}

}  // namespace windeck
