// Changes of the set of ids: remove, evict, insert, forget_dead.

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "table/batch.hpp"
#include "table/snapshot_order.hpp"
#include "windeck/table/table.hpp"

namespace windeck {
namespace {

constexpr std::size_t ahead = 16;  // ids to prefetch

/// The embedding's Euclidean norm, summed in double precision in order.
double norm(const RowFormat& format, const std::byte* values, std::size_t dim) {
    double sum = 0;
    for (std::size_t j = 0; j < dim; ++j) {
        float value;
        format.read(values + format.bytes(j), {&value, 1});
        sum += static_cast<double>(value) * static_cast<double>(value);
    }
    return std::sqrt(sum);
}

void require_count(std::int64_t value, std::int64_t id, const char* name) {
    if (value >= 0 && value <= clock_limit) return;
    throw std::invalid_argument("the " + std::string(name) + " of id " + std::to_string(id) +
                                " is " + std::to_string(value) +
                                ", expected an integer from 0 to 2^62");
}

/// Whether ids are in the order of snapshots, strictly ascending.
bool in_order(std::span<const std::int64_t> ids) {
    bool ascend = true;
    for (std::size_t i = 1; i < ids.size(); ++i)
        ascend = ascend && before_by_bucket(ids[i - 1], ids[i]);
    return ascend;
}

/// The first id that is given twice; none if all differ.
std::optional<std::int64_t> given_twice(std::span<const std::int64_t> ids) {
    if (in_order(ids)) return std::nullopt;
    IdMap given;
    given.reserve(ids.size());
    for (const std::int64_t id : ids) {
        if (given.find(id) != IdMap::absent) return id;
        given.add(id, 0, hash_id(id));
    }
    return std::nullopt;
}

/// Throws std::invalid_argument for an id that cannot be inserted.
void require_insertable(const IdMap& map, const WholeRows& rows) {
    for (std::size_t i = 0; i < rows.ids.size(); ++i) {
        require_count(rows.versions[i], rows.ids[i], "version");
        require_count(rows.frequencies[i], rows.ids[i], "frequency");
        require_count(rows.seen[i], rows.ids[i], "seen");
    }
    if (const auto id = given_twice(rows.ids)) {
        throw std::invalid_argument("id " + std::to_string(*id) +
                                    " is given twice, expected each id once");
    }
    for (std::size_t i = 0; i < rows.ids.size(); ++i) {
        if (i + ahead < rows.ids.size()) map.prefetch(hash_id(rows.ids[i + ahead]));
        if (map.find(rows.ids[i]) != IdMap::absent) {
            throw std::invalid_argument("id " + std::to_string(rows.ids[i]) +
                                        " is in the table already, expected ids that are not");
        }
    }
}

}  // namespace

std::int64_t Table::remove(std::span<const std::int64_t> ids) {
    const std::lock_guard lock(state_->mutex);
    State& s = *state_;
    require_own_buckets(options_, ids);
    std::int64_t removed = 0;
    for (const std::int64_t id : ids) {
        const EntryLocation place = s.find(id);
        if (place.is_absent()) continue;
        s.remove_entry(id, place);
        ++removed;
    }
    return removed;
}

std::vector<std::int64_t> Table::evict(const Eviction& which) {
    const std::lock_guard lock(state_->mutex);
    State& s = *state_;
    const auto dim = static_cast<std::size_t>(options_.dim);
    const auto matches = [&](const RowHead& head, const std::byte* values) {
        if (which.seen_before && head.seen >= *which.seen_before) return false;
        if (which.frequency_below && head.frequency >= *which.frequency_below) return false;
        if (!which.l2_below) return true;
        return values != nullptr && norm(s.format, values, dim) < *which.l2_below;
    };
    std::vector<std::int64_t> ids;
    for (std::uint64_t row = 0; row < s.rows.size(); ++row) {
        if (matches(s.rows.head(row), s.rows.values(row))) ids.push_back(s.rows.head(row).id);
    }
    for (std::uint64_t row = 0; row < s.counters.size(); ++row) {
        if (matches(s.counters.head(row), nullptr)) ids.push_back(s.counters.head(row).id);
    }
    std::ranges::sort(ids, before_by_bucket);
    s.dead_to_change().reserve(s.dead->size() + ids.size());
    for (const std::int64_t id : ids)
        s.remove_entry(id, s.find(id));
    return ids;
}

void Table::insert(const WholeRows& rows) {
    const std::lock_guard lock(state_->mutex);
    State& s = *state_;
    require_own_buckets(options_, rows.ids);
    require_insertable(s.map, rows);
    s.map.reserve(s.map.size() + rows.ids.size());
    s.dead_to_change();
    const std::size_t bytes = s.format.bytes(static_cast<std::size_t>(width()));
    const std::byte* values = rows.values.data();
    std::size_t done = 0;
    try {
        // The dead are left as they are until nothing can fail any more.
        for (; done < rows.ids.size(); ++done) {
            if (done + ahead < rows.ids.size()) s.map.prefetch(hash_id(rows.ids[done + ahead]));
            const std::int64_t id = rows.ids[done];
            const bool admitted = rows.admitted[done] != 0;
            RowStore& store = admitted ? s.rows : s.counters;
            const std::uint64_t number = store.append();
            s.map.add(
                id, (admitted ? EntryLocation::row(number) : EntryLocation::counter(number)).packed,
                hash_id(id));
            store.head_to_change(number) = {id, rows.versions[done], rows.frequencies[done],
                                            rows.seen[done]};
            if (!admitted) continue;
            copy_row(s.rows.values_to_change(number), values, bytes);
            values += bytes;
        }
    } catch (...) {
        while (done-- > 0)
            s.erase_entry(rows.ids[done], s.find(rows.ids[done]));  // the last one: moves nothing
        throw;
    }
    for (std::size_t i = 0; i < rows.ids.size() && s.dead->size() != 0; ++i) {
        if (s.dead->find(rows.ids[i]) != IdMap::absent) s.dead->erase(rows.ids[i]);
    }
    ++s.history;
}

void Table::forget_dead(std::int64_t clock) {
    const std::lock_guard lock(state_->mutex);
    State& s = *state_;
    auto kept = std::make_shared<IdMap>();
    const auto stays = [&](std::uint64_t died) { return static_cast<std::int64_t>(died) > clock; };
    std::uint64_t count = 0;
    s.dead->each([&](std::int64_t, std::uint64_t died) { count += stays(died) ? 1 : 0; });
    kept->reserve(count);
    s.dead->each([&](std::int64_t id, std::uint64_t died) {
        if (stays(died)) kept->set(id, died);
    });
    if (count != s.dead->size()) ++s.history;
    s.dead = std::move(kept);
    s.dead_shared = false;
}

}  // namespace windeck
