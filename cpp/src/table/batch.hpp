// Batches of ids against memory that is far away: what an id will need is asked for well before
// its turn comes, so that a hundred misses overlap where they would follow one another.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "table/state.hpp"

namespace windeck {

/// Ids are worked on in blocks of this many: what some blocks need fits the first two caches.
inline constexpr std::size_t block = 64;

/// Copies a row, line by line: a call of std::memcpy is half of what it takes to copy a short one.
inline void copy_floats(float* to, const float* from, std::size_t count) {
    constexpr std::size_t step = 16;  // a cache line
    std::size_t i = 0;
    for (; i + step <= count; i += step)
        std::memcpy(to + i, from + i, step * sizeof(float));
    for (; i < count; ++i)
        to[i] = from[i];
}

/// Finds the places of all ids.
///
/// Blocks are in three states at once: a block asks for where its ids may be in the map while the
/// one before looks there, and the one before that goes on with the few searches that did not end.
/// So nothing is waited for that was not asked for a block ago; a search that simply ran on would
/// wait for its second line, and all that comes after with it.
inline void find_places(const IdMap& map, std::span<const std::int64_t> ids, Place* places) {
    std::uint64_t hashes[2][block];
    std::size_t open[2][block];  // searches that did not end
    std::size_t opened[2] = {};
    const std::size_t blocks = (ids.size() + block - 1) / block;
    const auto end_of = [&](std::size_t b) { return std::min(ids.size(), (b + 1) * block); };
    for (std::size_t b = 0; b < blocks + 2; ++b) {
        const std::size_t now = b % 2;
        if (b >= 2) {
            for (std::size_t k = 0; k < opened[now]; ++k)
                places[open[now][k]] = Place{map.find(ids[open[now][k]])};
        }
        if (b < blocks) {
            for (std::size_t i = b * block; i < end_of(b); ++i) {
                const std::uint64_t hash = hash_id(ids[i]);
                hashes[now][i % block] = hash;
                map.prefetch(hash);
            }
        }
        if (b >= 1 && b <= blocks) {
            std::size_t count = 0;
            for (std::size_t i = (b - 1) * block; i < end_of(b - 1); ++i) {
                places[i] = Place{map.glance(ids[i], hashes[1 - now][i % block])};
                open[1 - now][count] = i;
                count += places[i].is_absent() ? 1U : 0U;
            }
            for (std::size_t k = 0; k < count; ++k)
                map.prefetch_beyond(hashes[1 - now][open[1 - now][k] % block]);
            opened[1 - now] = count;
        }
    }
}

/// Calls visit(i, near(i, place)) for the ids in order, near a block before visit: it asks for what
/// visit will touch, and says where that is. The map stays as it is meanwhile.
///
/// First the places of some hundred ids, then their rows.
template <typename Near, typename Visit>
void each_place(const IdMap& map, std::span<const std::int64_t> ids, const Near& near,
                const Visit& visit) {
    constexpr std::size_t chunk = 8 * block;
    Place places[chunk];
    decltype(near(std::size_t{}, Place{})) known[2][block];
    for (std::size_t begin = 0; begin < ids.size(); begin += chunk) {
        const auto some = ids.subspan(begin, std::min(chunk, ids.size() - begin));
        find_places(map, some, places);
        const std::size_t blocks = (some.size() + block - 1) / block;
        const auto end_of = [&](std::size_t b) { return std::min(some.size(), (b + 1) * block); };
        for (std::size_t b = 0; b <= blocks; ++b) {
            for (std::size_t i = b * block; b < blocks && i < end_of(b); ++i)
                known[b % 2][i % block] = near(begin + i, places[i]);
            for (std::size_t i = (b - 1) * block; b != 0 && i < end_of(b - 1); ++i)
                visit(begin + i, known[(b - 1) % 2][i % block]);
        }
    }
}

}  // namespace windeck
