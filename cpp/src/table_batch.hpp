// Batches of ids against memory that is far away: what an id will need is asked for well before
// its turn comes, so that a hundred misses overlap where they would follow one another.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "table_state.hpp"

namespace windeck {

/// How many ids ahead their slots are asked for; rows half as far.
inline constexpr std::size_t ahead = 64;

/// Calls visit(i, place) for the ids in order. `near(place)` is called some ids earlier, to ask for
/// what visit will touch.
template <typename Near, typename Visit>
void each_place(const IdMap& map, std::span<const std::int64_t> ids, const Near& near,
                const Visit& visit) {
    constexpr std::size_t half = ahead / 2;
    Place found[half];
    std::uint64_t hashes[half];
    const std::size_t count = ids.size();
    std::int64_t keys[half];
    for (std::size_t turn = 0; turn < count + ahead; ++turn) {
        const std::size_t slot = turn % half;
        if (turn >= ahead) visit(turn - ahead, found[slot]);
        if (turn >= half && turn < count + half) {
            const Place place{map.find(keys[slot], hashes[slot])};
            found[slot] = place;
            near(place);
        }
        if (turn < count) {
            keys[slot] = ids[turn];
            hashes[slot] = hash_id(keys[slot]);
            map.prefetch(hashes[slot]);
        }
    }
}

}  // namespace windeck
