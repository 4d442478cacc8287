// Batches of ids against memory that is far away: what an id will need is asked for well before
// its turn comes, so that a hundred misses overlap where they would follow one another.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "table_state.hpp"

namespace windeck {

/// Ids are worked on in blocks of this many: what a block needs fits the first cache.
inline constexpr std::size_t block = 64;

/// Calls visit(i, place) for the ids in order. `near(place)` is called some ids earlier, to ask for
/// what visit will touch; visit may change the map.
///
/// A block is gone through three times. Whether a search ends at its first slot is anybody's
/// guess, and a wrong guess throws away all that the processor began after it: so searches stand
/// together, and far misses are not among what is thrown away.
template <typename Near, typename Visit>
void each_place(const IdMap& map, std::span<const std::int64_t> ids, const Near& near,
                const Visit& visit) {
    std::uint64_t hashes[block];
    Place found[block];
    for (std::size_t begin = 0; begin < ids.size(); begin += block) {
        const auto some = ids.subspan(begin, std::min(block, ids.size() - begin));
        for (std::size_t i = 0; i < some.size(); ++i) {
            hashes[i] = hash_id(some[i]);
            map.prefetch(hashes[i]);
        }
        for (std::size_t i = 0; i < some.size(); ++i) {
            found[i] = Place{map.find(some[i], hashes[i])};
            near(found[i]);
        }
        for (std::size_t i = 0; i < some.size(); ++i)
            visit(begin + i, found[i]);
    }
}

}  // namespace windeck
