#include "table/table_state.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "table/batch.hpp"
#include "windeck/base/parallel.hpp"

namespace windeck {
namespace {

/// The locks of all tables of the process.
struct TableLocks {
    std::mutex mutex;  // of the list
    std::vector<std::shared_mutex*> every;
};

TableLocks& table_locks() {
    static auto* const locks = new TableLocks;  // never deleted: a fork may come at the very end
    return *locks;
}

void lock_tables() {
    table_locks().mutex.lock();
    for (std::shared_mutex* const one : table_locks().every)
        one->lock();
}

void unlock_tables() {
    for (std::shared_mutex* const one : table_locks().every)
        one->unlock();
    table_locks().mutex.unlock();
}

/// In a child of fork, whose only thread has another number than the one that locked.
void renew_locks() {
    for (std::shared_mutex* const one : table_locks().every)
        std::construct_at(one);
    std::construct_at(&table_locks().mutex);
}

/// Registered at load, before there can be threads.
[[maybe_unused]] const int registered = pthread_atfork(lock_tables, unlock_tables, renew_locks);

}  // namespace

Table::State::State(const TableOptions& options)
    : initial(options.initializer, options.scale, options.seed),
      format(options.dtype),
      rows(format.bytes(static_cast<std::size_t>((1 + options.slots) * options.dim))),
      counters(0),
      dead(std::make_shared<IdMap>()) {
    const std::lock_guard lock(table_locks().mutex);
    table_locks().every.push_back(&mutex);
}

Table::State::~State() {
    const std::lock_guard lock(table_locks().mutex);
    std::erase(table_locks().every, &mutex);
}

void require_own_buckets(const TableOptions& options, std::span<const std::int64_t> ids) {
    if (options.first_bucket == 0 && options.end_bucket == bucket_count) return;
    for (const std::int64_t id : ids) {
        const std::int64_t bucket = bucket_of(id);
        if (bucket >= options.first_bucket && bucket < options.end_bucket) continue;
        throw std::invalid_argument("id " + std::to_string(id) + " is of bucket " +
                                    std::to_string(bucket) + ", expected one of [" +
                                    std::to_string(options.first_bucket) + ", " +
                                    std::to_string(options.end_bucket) + "), this table's");
    }
}

EntryLocation Table::State::add(std::int64_t id, bool admitted, bool revive) {
    const bool was_dead = revive && dead->size() != 0 && dead->find(id) != IdMap::absent;
    if (was_dead) dead_to_change();
    map.reserve(map.size() + 1);
    RowStore& store = admitted ? rows : counters;
    const std::uint64_t number = store.append();
    store.head_to_change(number).id = id;
    const EntryLocation place =
        admitted ? EntryLocation::row(number) : EntryLocation::counter(number);
    map.set(id, place.packed);
    if (was_dead) dead->erase(id);
    return place;
}

void Table::State::erase_entry(std::int64_t id, EntryLocation place) {
    RowStore& store = place.is_row() ? rows : counters;
    const std::uint64_t last = store.size() - 1;
    if (place.number() != last) {
        // The last one moves into the gap, so that rows stay without any.
        store.make_writable(place.number());
        store.move_row(last, place.number());
        map.set(store.head(last).id, place.packed);
    }
    store.shrink(last);
    map.erase(id);
}

IdMap& Table::State::dead_to_change() {
    if (dead_shared) {
        dead = std::make_shared<IdMap>(*dead);
        dead_shared = false;
    }
    return *dead;
}

void Table::State::remove_entry(std::int64_t id, EntryLocation place) {
    IdMap& dead_ids = dead_to_change();
    dead_ids.reserve(dead_ids.size() + 1);
    erase_entry(id, place);
    dead_ids.set(id, static_cast<std::uint64_t>(clock) + 1);
}

EntryLocation Table::State::count_occurrence(std::int64_t id, EntryLocation place,
                                             std::int64_t admit_after) {
    if (place.is_absent()) {
        place = add(id, admit_after <= 1);
        record_lookup((place.is_row() ? rows : counters).head_to_change(place.number()));
        return place;
    }
    counters.make_writable(place.number());
    RowHead& head = counters.head_to_change(place.number());
    if (head.frequency + 1 < admit_after) {
        record_lookup(head);
        return place;
    }
    const std::uint64_t row = rows.append();  // first, for it may throw
    rows.head_to_change(row) = head;
    record_lookup(rows.head_to_change(row));
    erase_entry(id, place);
    map.set(id, EntryLocation::row(row).packed);
    return EntryLocation::row(row);
}

bool Table::State::record_row_lookups(std::size_t count, int threads) {
    // Each thread takes slabs of its own, so that no two write to one head, or copy one slab.
    constexpr std::size_t few = 4096;
    const std::uint64_t portions =
        count <= few ? 1 : std::bit_floor(static_cast<unsigned>(std::clamp(threads, 1, 8)));
    std::atomic<bool> all{true};
    parallel_for(
        static_cast<std::int64_t>(portions), 1, threads, [&](std::int64_t from, std::int64_t) {
            const auto portion = static_cast<std::uint64_t>(from);
            std::uint64_t mine[id_block];
            RowHead* heads[id_block];
            bool whole = true;
            for (std::size_t begin = 0; begin < count; begin += id_block) {
                std::size_t found = 0;
                for (std::size_t i = begin; i < std::min(begin + id_block, count); ++i) {
                    const EntryLocation place{places[i]};
                    const bool row = !place.is_absent();
                    whole = whole && row;
                    mine[found] = place.number();
                    found +=
                        row && (rows.slab(place.number()) & (portions - 1)) == portion ? 1U : 0U;
                }
                for (std::size_t i = 0; i < found; ++i) {
                    rows.make_writable(mine[i]);
                    heads[i] = &rows.head_to_change(mine[i]);
                    __builtin_prefetch(heads[i], 1);
                }
                for (std::size_t i = 0; i < found; ++i)
                    record_lookup(*heads[i]);
            }
            if (!whole) all.store(false, std::memory_order_relaxed);
        });
    return all.load(std::memory_order_relaxed);
}

void Table::State::count_absent(std::span<const std::int64_t> ids, std::int64_t admit_after) {
    constexpr std::size_t ahead = 16;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (i + ahead < ids.size() && EntryLocation{places[i + ahead]}.is_absent())
            map.prefetch(hash_id(ids[i + ahead]));
        if (!EntryLocation{places[i]}.is_absent()) continue;
        const EntryLocation place =
            find(ids[i]);  // one of the ids before it may have been the same
        if (place.is_row()) {
            rows.make_writable(place.number());
            record_lookup(rows.head_to_change(place.number()));
        } else {
            count_occurrence(ids[i], place, admit_after);
        }
    }
}

}  // namespace windeck
