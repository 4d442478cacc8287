#include "table/state.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <stdexcept>
#include <string>

#include "table/batch.hpp"
#include "windeck/base/parallel.hpp"

namespace windeck {

void require_own(const TableOptions& options, std::span<const std::int64_t> ids) {
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

Place Table::State::add(std::int64_t id, bool admitted, bool revive) {
    const bool was_dead = revive && dead->size() != 0 && dead->find(id) != IdMap::absent;
    if (was_dead) dead_to_change();
    map.reserve(map.size() + 1);
    RowStore& store = admitted ? rows : counters;
    const std::uint64_t number = store.append();
    store.head_to_change(number).id = id;
    const Place place = admitted ? Place::row(number) : Place::counter(number);
    map.set(id, place.packed);
    if (was_dead) dead->erase(id);
    return place;
}

void Table::State::take_out(std::int64_t id, Place place) {
    RowStore& store = place.is_row() ? rows : counters;
    const std::uint64_t last = store.size() - 1;
    if (place.number() != last) {
        // The last one moves into the gap, so that rows stay without any.
        store.own(place.number());
        store.move_row(last, place.number());
        map.set(store.head(last).id, place.packed);
    }
    store.pop();
    map.erase(id);
}

IdMap& Table::State::dead_to_change() {
    if (dead_shared) {
        dead = std::make_shared<IdMap>(*dead);
        dead_shared = false;
    }
    return *dead;
}

void Table::State::bury(std::int64_t id, Place place) {
    IdMap& graves = dead_to_change();
    graves.reserve(graves.size() + 1);
    take_out(id, place);
    graves.set(id, static_cast<std::uint64_t>(clock) + 1);
}

Place Table::State::count_up(std::int64_t id, Place place, std::int64_t admit_after) {
    if (place.is_absent()) {
        place = add(id, admit_after <= 1);
        touch((place.is_row() ? rows : counters).head_to_change(place.number()));
        return place;
    }
    counters.own(place.number());
    RowHead& head = counters.head_to_change(place.number());
    if (head.frequency + 1 < admit_after) {
        touch(head);
        return place;
    }
    const std::uint64_t row = rows.append();  // first, for it may throw
    rows.head_to_change(row) = head;
    touch(rows.head_to_change(row));
    take_out(id, place);
    map.set(id, Place::row(row).packed);
    return Place::row(row);
}

bool Table::State::touch_rows(std::size_t count, int threads) {
    // Each thread takes slabs of its own, so that no two write to one head, or copy one slab.
    constexpr std::size_t few = 4096;
    const std::uint64_t parts =
        count <= few ? 1 : std::bit_floor(static_cast<unsigned>(std::clamp(threads, 1, 8)));
    std::atomic<bool> all{true};
    parallel_for(
        static_cast<std::int64_t>(parts), 1, threads, [&](std::int64_t from, std::int64_t) {
            const auto part = static_cast<std::uint64_t>(from);
            std::uint64_t mine[block];
            RowHead* heads[block];
            bool whole = true;
            for (std::size_t begin = 0; begin < count; begin += block) {
                std::size_t found = 0;
                for (std::size_t i = begin; i < std::min(begin + block, count); ++i) {
                    const Place place{places[i]};
                    const bool row = !place.is_absent();
                    whole = whole && row;
                    mine[found] = place.number();
                    found += row && (rows.slab(place.number()) & (parts - 1)) == part ? 1U : 0U;
                }
                for (std::size_t i = 0; i < found; ++i) {
                    rows.own(mine[i]);
                    heads[i] = &rows.head_to_change(mine[i]);
                    __builtin_prefetch(heads[i], 1);
                }
                for (std::size_t i = 0; i < found; ++i)
                    touch(*heads[i]);
            }
            if (!whole) all.store(false, std::memory_order_relaxed);
        });
    return all.load(std::memory_order_relaxed);
}

void Table::State::count_others(std::span<const std::int64_t> ids, std::int64_t admit_after) {
    constexpr std::size_t ahead = 16;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (i + ahead < ids.size() && Place{places[i + ahead]}.is_absent())
            map.prefetch(hash_id(ids[i + ahead]));
        if (!Place{places[i]}.is_absent()) continue;
        const Place place = find(ids[i]);  // one of the ids before it may have been the same
        if (place.is_row()) {
            rows.own(place.number());
            touch(rows.head_to_change(place.number()));
        } else {
            count_up(ids[i], place, admit_after);
        }
    }
}

}  // namespace windeck
