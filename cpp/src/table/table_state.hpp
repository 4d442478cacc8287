// The state of a table, for the files that implement it.

#pragma once

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <span>
#include <vector>

#include "table/id_map.hpp"
#include "table/row_format.hpp"
#include "table/row_occurrences.hpp"
#include "table/slabs.hpp"
#include "windeck/table/table.hpp"

namespace windeck {

/// The location of the entry of an id: a row, or a counter of an id without a row.
struct EntryLocation {
    std::uint64_t packed = IdMap::absent;

    static EntryLocation row(std::uint64_t number) { return {number << 1}; }
    static EntryLocation counter(std::uint64_t number) { return {number << 1 | 1}; }

    bool is_absent() const { return packed == IdMap::absent; }
    /// False also for an absent entry.
    bool is_row() const { return (packed & 1) == 0; }
    std::uint64_t number() const { return packed >> 1; }
};

struct Table::State {
    explicit State(const TableOptions& options);
    ~State();
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    /// A fork of the process waits until no thread has it, so that the child finds a whole table.
    mutable std::shared_mutex mutex;
    InitialValues initial;
    RowFormat format;
    IdMap map;  // id -> EntryLocation
    RowStore rows;
    RowStore counters;            // ids without a row: heads only
    std::shared_ptr<IdMap> dead;  // id -> clock
    bool dead_shared = false;     // a snapshot may hold it
    std::int64_t clock = 0;
    std::int64_t history = 0;

    // Reused between calls to avoid page faults; used under the exclusive lock only.
    std::vector<std::uint64_t> places;
    RowOccurrences occurrences;

    EntryLocation find(std::int64_t id) const { return {map.find(id)}; }

    /// The address of the values of a row, `bytes` of them prefetched; null if it is no row.
    const std::byte* values_soon(EntryLocation place, std::size_t bytes) const {
        if (!place.is_row()) return nullptr;
        rows.prefetch_values(place.number(), bytes);
        return rows.values(place.number());
    }

    /// Adds an entry for an id that has none, with a zeroed head but for the id. The caller sets
    /// the values of a row. With `revive`, the id is removed from the dead ids.
    EntryLocation add(std::int64_t id, bool admitted, bool revive = true);
    /// Erases the entry of an id.
    void erase_entry(std::int64_t id, EntryLocation place);
    /// Removes an id and records it as dead.
    void remove_entry(std::int64_t id, EntryLocation place);
    /// Counts an occurrence of an id without a row, which has a counter at `place` or none. Returns
    /// its new location.
    EntryLocation count_occurrence(std::int64_t id, EntryLocation place, std::int64_t admit_after);
    /// Counts an occurrence at each of the first `count` of `places`, each a row or absent. Returns
    /// whether all were rows. Throws std::bad_alloc after counting some.
    bool record_row_lookups(std::size_t count, int threads);
    /// Counts the occurrences of ids that are absent in `places`, in order. The caller sets the
    /// values of new rows, also if it throws.
    void count_absent(std::span<const std::int64_t> ids, std::int64_t admit_after);
    void record_lookup(RowHead& head) const {
        ++head.frequency;
        head.seen = clock + 1;
    }
    /// The dead ids, copied first if a snapshot may hold them.
    IdMap& dead_to_change();
};

/// Throws std::invalid_argument for the first id that is not in the table's range of buckets.
void require_own_buckets(const TableOptions& options, std::span<const std::int64_t> ids);

}  // namespace windeck
