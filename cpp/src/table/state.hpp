// What a table holds, for the files that implement it.

#pragma once

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <span>
#include <vector>

#include "table/groups.hpp"
#include "table/id_map.hpp"
#include "table/slabs.hpp"
#include "windeck/table/table.hpp"

namespace windeck {

/// Where an id's entry is: among the rows or among those that are only counted.
struct Place {
    std::uint64_t packed = IdMap::absent;

    static Place row(std::uint64_t number) { return {number << 1}; }
    static Place counter(std::uint64_t number) { return {number << 1 | 1}; }

    bool is_absent() const { return packed == IdMap::absent; }
    /// False where it is absent, too.
    bool is_row() const { return (packed & 1) == 0; }
    std::uint64_t number() const { return packed >> 1; }
};

struct Table::State {
    explicit State(const TableOptions& options)
        : initial(options.initializer, options.scale, options.seed),
          rows(static_cast<std::size_t>((1 + options.slots) * options.dim)),
          counters(0),
          dead(std::make_shared<IdMap>()) {}

    mutable std::shared_mutex mutex;
    InitialValues initial;
    IdMap map;  // id -> Place
    RowStore rows;
    RowStore counters;            // ids without a row: heads only
    std::shared_ptr<IdMap> dead;  // id -> clock
    bool dead_shared = false;     // a snapshot has it too, or had
    std::int64_t clock = 0;
    std::int64_t history = 0;

    // Kept from call to call, for fresh pages are dear; used under the exclusive lock only.
    std::vector<std::uint64_t> places;
    Groups groups;

    Place find(std::int64_t id) const { return {map.find(id)}; }

    /// Where the values of a row are, of which so many will be read soon; null for what is none.
    const float* values_soon(Place place, std::size_t floats) const {
        if (!place.is_row()) return nullptr;
        rows.prefetch_values(place.number(), floats);
        return rows.values(place.number());
    }

    /// Makes an entry for an id that has none, its head zeroed but for the id. A row's values are
    /// left to the caller. `revive`: it is not dead any more.
    Place add(std::int64_t id, bool admitted, bool revive = true);
    /// Takes an id's entry away, and forgets nothing else.
    void take_out(std::int64_t id, Place place);
    /// Removes an id and remembers it as dead.
    void bury(std::int64_t id, Place place);
    /// One more occurrence of an id that has no row, at this place or none; where it is then.
    Place count_up(std::int64_t id, Place place, std::int64_t admit_after);
    /// Counts an occurrence at each of the first `count` of `places`, each a row or absent. Whether
    /// all were rows. Throws std::bad_alloc, having counted some.
    bool touch_rows(std::size_t count, int threads);
    /// Counts the occurrences of those that are absent in `places`, in order. Values of rows that
    /// are new are left to the caller, also where it throws.
    void count_others(std::span<const std::int64_t> ids, std::int64_t admit_after);
    void touch(RowHead& head) const {
        ++head.frequency;
        head.seen = clock + 1;
    }
    /// The dead, ours to change.
    IdMap& dead_to_change();
};

/// Throws std::invalid_argument for the first id that is not in the table's range of buckets.
void require_own(const TableOptions& options, std::span<const std::int64_t> ids);

}  // namespace windeck
