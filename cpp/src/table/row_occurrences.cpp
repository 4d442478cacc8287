#include "table/row_occurrences.hpp"

#include <algorithm>
#include <bit>

#include "table/table_state.hpp"
#include "windeck/base/hash.hpp"

namespace windeck {

void RowOccurrences::make(std::span<const std::uint64_t> places) {
    rows.clear();
    next.assign(places.size(), none);
    const std::size_t size = std::bit_ceil(std::max<std::size_t>(places.size() * 2, 2));
    table_.assign(size, none);
    for (std::size_t i = 0; i < places.size(); ++i) {
        const EntryLocation place{places[i]};
        if (!place.is_row()) continue;
        std::size_t at = mix(place.number()) & (size - 1);
        while (table_[at] != none && rows[table_[at]].number != place.number())
            at = (at + 1) & (size - 1);
        if (table_[at] == none) {
            table_[at] = rows.size();
            rows.push_back({place.number(), i, i});
        } else {
            Row& row = rows[table_[at]];
            next[row.last] = i;
            row.last = i;
        }
    }
}

std::size_t RowOccurrences::bytes() const noexcept {
    return rows.capacity() * sizeof(Row) + (next.capacity() + table_.capacity()) * sizeof(next[0]);
}

}  // namespace windeck
