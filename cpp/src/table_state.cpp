#include "table_state.hpp"

#include <stdexcept>
#include <string>

#include "table_batch.hpp"

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

void Table::State::count_all(std::span<const std::int64_t> ids, std::int64_t admit_after) {
    each_place(
        map, ids,
        [&](Place place) {
            if (place.is_row()) rows.prefetch_head(place.number());
        },
        [&](std::size_t i, Place place) {
            // Found some ids ago: a row stays where it is, all else may have changed since.
            const std::int64_t id = ids[i];
            if (!place.is_row()) place = find(id);
            if (place.is_row()) {
                rows.own(place.number());
                touch(rows.head_to_change(place.number()));
            } else {
                place = count_up(id, place, admit_after);
            }
            places[i] = place.is_row() ? place.packed : IdMap::absent;
        });
}

}  // namespace windeck
