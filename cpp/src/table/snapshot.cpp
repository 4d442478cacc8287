#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "table/batch.hpp"
#include "table/snapshot_order.hpp"
#include "table/sort.hpp"
#include "table/table_state.hpp"
#include "windeck/table/table.hpp"

namespace windeck {
namespace {

// Entries found in one pass over the table: so many, or a larger share of a large table, so that
// the number of passes over a table is bounded.
constexpr std::int64_t window_entries = std::int64_t{1} << 20;  // 16 MiB of them
constexpr std::int64_t most_passes = 8;

using Counts = std::array<std::int64_t, bucket_count>;

/// The ids of consecutive buckets, found in one pass over the table.
struct BucketCache {
    std::int64_t since;
    int first;
    int end;
    std::vector<std::int64_t> starts;  // of each bucket in `entries`, and their number
    std::vector<TableSnapshot::Entry> entries;
    std::vector<std::uint8_t> sorted;  // of each bucket whether its entries are in order
    std::vector<TableSnapshot::Entry> scratch;

    bool covers(int from, int to, std::int64_t when) const {
        return when == since && from >= first && to <= end;
    }

    /// Sorts buckets at their first use, so that the first bucket of a series of reads is ready
    /// soon. Selections of other buckets may be in use meanwhile.
    void sort(int from, int to);
};

void BucketCache::sort(int from, int to) {
    for (auto i = static_cast<std::size_t>(from - first); i < static_cast<std::size_t>(to - first);
         ++i) {
        if (std::exchange(sorted[i], std::uint8_t{1}) != 0) continue;
        const auto begin = static_cast<std::size_t>(starts[i]);
        const auto count = static_cast<std::size_t>(starts[i + 1]) - begin;
        sort_by_id(std::span(entries).subspan(begin, count), scratch);
    }
}

}  // namespace

struct TableSnapshot::Contents {
    RowView rows;
    RowView counters;
    std::shared_ptr<const IdMap> dead;
    std::int64_t clock = 0;
    std::int64_t history = 0;
    std::size_t width = 0;
    std::size_t row_bytes = 0;
    DType dtype = DType::float32;

    std::mutex mutex;                                    // of the caches below
    std::array<std::shared_ptr<BucketCache>, 2> caches;  // of two threads, each with a range
    std::shared_ptr<const Counts> counted;
    std::int64_t counted_since = 0;

    /// Calls visit(head, place) for each id that changed after `since`.
    template <typename Visit>
    void each(std::int64_t since, const Visit& visit) const {
        for (std::uint64_t row = 0; row < rows.size(); ++row) {
            const RowHead& head = rows.head(row);
            if (std::max(head.version, head.seen) > since) visit(head, EntryLocation::row(row));
        }
        for (std::uint64_t row = 0; row < counters.size(); ++row) {
            const RowHead& head = counters.head(row);
            if (std::max(head.version, head.seen) > since) visit(head, EntryLocation::counter(row));
        }
    }

    const RowHead& head(EntryLocation place) const {
        return (place.is_row() ? rows : counters).head(place.number());
    }

    std::shared_ptr<const Counts> counts(std::int64_t since);
    std::shared_ptr<const BucketCache> find(int first, int end, std::int64_t since);
    std::shared_ptr<BucketCache> gather(int first, int end, std::int64_t since,
                                        const Counts& counts) const;
};

/// Under the mutex.
std::shared_ptr<const Counts> TableSnapshot::Contents::counts(std::int64_t since) {
    if (counted && counted_since == since) return counted;
    auto cache_of_buckets = std::make_shared<Counts>();
    cache_of_buckets->fill(0);
    each(since, [&](const RowHead& head, EntryLocation) {
        ++(*cache_of_buckets)[static_cast<std::size_t>(bucket_of(head.id))];
    });
    counted = cache_of_buckets;
    counted_since = since;
    return cache_of_buckets;
}

std::shared_ptr<BucketCache> TableSnapshot::Contents::gather(int first, int end, std::int64_t since,
                                                             const Counts& counts) const {
    auto cache_of_buckets = std::make_shared<BucketCache>();
    cache_of_buckets->since = since;
    cache_of_buckets->first = first;
    cache_of_buckets->starts.push_back(0);
    const auto all = static_cast<std::int64_t>(rows.size() + counters.size());
    const std::int64_t room = std::max(window_entries, all / most_passes);
    std::int64_t total = 0;
    // The buckets that were asked for, and as many after them as there is room for.
    for (int bucket = first; bucket < bucket_count; ++bucket) {
        const std::int64_t more = counts[static_cast<std::size_t>(bucket)];
        if (bucket >= end && total + more > room) break;
        total += more;
        cache_of_buckets->starts.push_back(total);
    }
    cache_of_buckets->end = first + static_cast<int>(cache_of_buckets->starts.size()) - 1;
    cache_of_buckets->entries.resize(static_cast<std::size_t>(total));
    std::vector<std::int64_t> next(cache_of_buckets->starts);
    each(since, [&](const RowHead& head, EntryLocation place) {
        const std::int64_t bucket = bucket_of(head.id);
        if (bucket < cache_of_buckets->first || bucket >= cache_of_buckets->end) return;
        const auto at = next[static_cast<std::size_t>(bucket - cache_of_buckets->first)]++;
        cache_of_buckets->entries[static_cast<std::size_t>(at)] = {head.id, place.packed};
    });
    cache_of_buckets->sorted.assign(cache_of_buckets->starts.size() - 1, 0);
    return cache_of_buckets;
}

std::shared_ptr<const BucketCache> TableSnapshot::Contents::find(int first, int end,
                                                                 std::int64_t since) {
    const std::lock_guard lock(mutex);
    auto cache = std::ranges::find_if(
        caches, [&](const auto& made) { return made && made->covers(first, end, since); });
    if (cache == caches.end()) {
        // Instead of the one that ends here, or of the one that was made first.
        cache = std::ranges::find_if(caches, [&](const auto& made) {
            return !made || (made->since == since && made->end == first);
        });
        if (cache == caches.end()) cache = caches.begin();
        cache->reset();  // before the next one is made, so that there is never room for three
        *cache = gather(first, end, since, *counts(since));
    }
    (*cache)->sort(first, end);
    return *cache;
}

TableSnapshot::TableSnapshot(std::unique_ptr<Contents> contents) : contents_(std::move(contents)) {}

TableSnapshot::~TableSnapshot() = default;

std::int64_t TableSnapshot::clock() const noexcept {
    return contents_->clock;
}

std::int64_t TableSnapshot::width() const noexcept {
    return static_cast<std::int64_t>(contents_->width);
}

DType TableSnapshot::dtype() const noexcept {
    return contents_->dtype;
}

std::int64_t TableSnapshot::history() const noexcept {
    return contents_->history;
}

std::int64_t TableSnapshot::admitted() const noexcept {
    return static_cast<std::int64_t>(contents_->rows.size());
}

std::int64_t TableSnapshot::size() const noexcept {
    return static_cast<std::int64_t>(contents_->rows.size() + contents_->counters.size());
}

std::array<std::int64_t, bucket_count> TableSnapshot::counts(std::int64_t since) const {
    const std::lock_guard lock(contents_->mutex);
    return *contents_->counts(since);
}

TableSnapshot::Selection TableSnapshot::select(int first, int end, std::int64_t since) const {
    const std::shared_ptr<const BucketCache> cache = contents_->find(first, end, since);
    const auto from = cache->starts[static_cast<std::size_t>(first - cache->first)];
    const auto to = cache->starts[static_cast<std::size_t>(end - cache->first)];
    Selection out;
    out.owner = cache;
    out.entries = std::span(cache->entries)
                      .subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from));
    out.admitted = std::ranges::count_if(
        out.entries, [](const Entry& entry) { return EntryLocation{entry.place}.is_row(); });
    return out;
}

void TableSnapshot::read(std::span<const Entry> entries, std::int64_t* ids, const IdMetadata& facts,
                         std::byte* values) const {
    const Contents& c = *contents_;
    // Two loops, since heads and values are in different memory: in one loop, a line of a head
    // would wait for the values that were prefetched before it.
    constexpr std::size_t heads_ahead = 16;
    for (std::size_t i = 0; i < entries.size(); ++i) {
        if (i + heads_ahead < entries.size()) {
            const EntryLocation soon{entries[i + heads_ahead].place};
            (soon.is_row() ? c.rows : c.counters).prefetch_head(soon.number());
        }
        const EntryLocation place{entries[i].place};
        const RowHead& head = c.head(place);
        ids[i] = entries[i].id;
        facts.versions[i] = head.version;
        facts.frequencies[i] = head.frequency;
        facts.seen[i] = head.seen;
        facts.admitted[i] = place.is_row() ? 1 : 0;
    }
    constexpr std::size_t values_ahead = 24;
    for (std::size_t i = 0; i < entries.size(); ++i) {
        if (i + values_ahead < entries.size()) {
            const EntryLocation soon{entries[i + values_ahead].place};
            if (soon.is_row()) c.rows.prefetch_values(soon.number(), c.row_bytes);
        }
        const EntryLocation place{entries[i].place};
        if (!place.is_row()) continue;
        copy_row(values, c.rows.values(place.number()), c.row_bytes);
        values += c.row_bytes;
    }
}

std::vector<std::pair<std::int64_t, std::int64_t>> TableSnapshot::dead(std::int64_t since) const {
    std::vector<std::pair<std::int64_t, std::int64_t>> out;
    contents_->dead->each([&](std::int64_t id, std::uint64_t number) {
        const auto clock = static_cast<std::int64_t>(number);
        if (clock > since) out.emplace_back(id, clock);
    });
    std::ranges::sort(
        out, [](const auto& a, const auto& b) { return before_by_bucket(a.first, b.first); });
    return out;
}

std::shared_ptr<const TableSnapshot> Table::snapshot() {
    auto contents = std::make_unique<TableSnapshot::Contents>();
    const std::lock_guard lock(state_->mutex);
    State& s = *state_;
    contents->rows = s.rows.view();
    contents->counters = s.counters.view();
    contents->dead = s.dead;
    s.dead_shared = true;
    contents->clock = s.clock;
    contents->history = s.history;
    contents->width = static_cast<std::size_t>(width());
    contents->row_bytes = s.format.bytes(contents->width);
    contents->dtype = options_.dtype;
    return std::make_shared<const TableSnapshot>(std::move(contents));
}

}  // namespace windeck
