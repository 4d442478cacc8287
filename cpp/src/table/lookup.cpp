// Lookups: reads are concurrent, counting and admitting are exclusive.

#include <algorithm>
#include <mutex>
#include <shared_mutex>

#include "table/batch.hpp"
#include "windeck/base/parallel.hpp"
#include "windeck/table/table.hpp"

namespace windeck {
namespace {

constexpr std::int64_t grain = 4096;

/// Writes the values of a new row.
void write_new(const InitialValues& initial, const TableOptions& options, std::int64_t id,
               std::byte* row) {
    const auto dim = static_cast<std::size_t>(options.dim);
    const RowFormat format(options.dtype);
    format.write_initial(initial, id, row, dim);
    for (std::size_t i = dim; i < dim * static_cast<std::size_t>(1 + options.slots); ++i)
        format.write({&options.slot_value, 1}, row + format.bytes(i));
}

/// Calls body(part of ids, index of its first) in parallel.
template <typename Body>
void in_portions(std::span<const std::int64_t> ids, int threads, const Body& body) {
    parallel_for(static_cast<std::int64_t>(ids.size()), grain, threads,
                 [&](std::int64_t from, std::int64_t to) {
                     const auto begin = static_cast<std::size_t>(from);
                     body(ids.subspan(begin, static_cast<std::size_t>(to - from)), begin);
                 });
}

}  // namespace

void Table::lookup(std::span<const std::int64_t> ids, std::byte* out, int threads) const {
    const std::shared_lock lock(state_->mutex);
    const State& s = *state_;
    require_own_buckets(options_, ids);
    const auto dim = static_cast<std::size_t>(options_.dim);
    const std::size_t bytes = s.format.bytes(dim);
    in_portions(ids, threads, [&](std::span<const std::int64_t> some, std::size_t first) {
        std::byte* const into = out + first * bytes;
        for_each_location(
            s.map, some,
            [&](std::size_t, EntryLocation place) { return s.values_soon(place, bytes); },
            [&](std::size_t i, const std::byte* values) {
                std::byte* const to = into + i * bytes;
                if (values != nullptr) {
                    copy_row(to, values, bytes);
                } else {
                    s.format.write_initial(s.initial, some[i], to, dim);
                }
            });
    });
}

void Table::read(std::span<const std::int64_t> ids, std::byte* out, int threads) const {
    const std::shared_lock lock(state_->mutex);
    const State& s = *state_;
    require_own_buckets(options_, ids);
    const std::size_t bytes = s.format.bytes(static_cast<std::size_t>(width()));
    in_portions(ids, threads, [&](std::span<const std::int64_t> some, std::size_t first) {
        std::byte* const into = out + first * bytes;
        for_each_location(
            s.map, some,
            [&](std::size_t, EntryLocation place) { return s.values_soon(place, bytes); },
            [&](std::size_t i, const std::byte* values) {
                std::byte* const to = into + i * bytes;
                if (values != nullptr) {
                    copy_row(to, values, bytes);
                } else {
                    write_new(s.initial, options_, some[i], to);
                }
            });
    });
}

void Table::facts(std::span<const std::int64_t> ids, const IdMetadata& out) const {
    const std::shared_lock lock(state_->mutex);
    const State& s = *state_;
    require_own_buckets(options_, ids);
    struct KnownEntry {
        const RowHead* head;  // null: never seen
        bool row;
    };
    for_each_location(
        s.map, ids,
        [&](std::size_t, EntryLocation place) -> KnownEntry {
            if (place.is_absent()) return {nullptr, false};
            const RowStore& store = place.is_row() ? s.rows : s.counters;
            store.prefetch_head(place.number());
            return {&store.head(place.number()), place.is_row()};
        },
        [&](std::size_t i, KnownEntry known) {
            const RowHead head = known.head != nullptr ? *known.head : RowHead{};
            if (out.versions != nullptr) out.versions[i] = head.version;
            if (out.frequencies != nullptr) out.frequencies[i] = head.frequency;
            if (out.seen != nullptr) out.seen[i] = head.seen;
            if (out.admitted != nullptr) out.admitted[i] = known.row ? 1 : 0;
        });
}

void Table::lookup_insert(std::span<const std::int64_t> ids, std::byte* out, int threads) {
    const std::lock_guard lock(state_->mutex);
    State& s = *state_;
    require_own_buckets(options_, ids);
    const auto dim = static_cast<std::size_t>(options_.dim);
    const std::size_t bytes = s.format.bytes(dim);
    s.places.resize(std::max(s.places.size(), ids.size()));
    in_portions(ids, threads, [&](std::span<const std::int64_t> some, std::size_t first) {
        for_each_location(
            s.map, some,
            [&](std::size_t i, EntryLocation place) {
                s.places[first + i] = place.is_row() ? place.packed : IdMap::absent;
                return s.values_soon(place, bytes);
            },
            [&](std::size_t i, const std::byte* values) {
                if (values != nullptr) copy_row(out + (first + i) * bytes, values, bytes);
            });
    });
    const bool all_rows = s.record_row_lookups(ids.size(), threads);
    if (all_rows) return;

    const std::uint64_t rows_before = s.rows.size();
    const auto fill_new = [&] {
        const auto fresh = static_cast<std::int64_t>(s.rows.size() - rows_before);
        parallel_for(fresh, 256, threads, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                const std::uint64_t row = rows_before + static_cast<std::uint64_t>(i);
                write_new(s.initial, options_, s.rows.head(row).id, s.rows.values_to_change(row));
            }
        });
    };
    try {
        s.count_absent(ids, options_.admit_after);
    } catch (...) {
        fill_new();
        throw;
    }
    fill_new();
    // Ids without a row before this call read as their initial values.
    in_portions(ids, threads, [&](std::span<const std::int64_t> some, std::size_t first) {
        for (std::size_t i = 0; i < some.size(); ++i) {
            if (!EntryLocation{s.places[first + i]}.is_absent()) continue;
            s.format.write_initial(s.initial, some[i], out + (first + i) * bytes, dim);
        }
    });
}

}  // namespace windeck
