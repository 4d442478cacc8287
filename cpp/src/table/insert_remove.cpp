// Changes of the set of ids: remove, evict, insert, forget_dead.

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "table/batch.hpp"
#include "table/snapshot_order.hpp"
#include "windeck/base/parallel.hpp"
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

/// Throws std::invalid_argument for a number that is out of range.
void require_counts(const WholeRows& rows) {
    for (std::size_t i = 0; i < rows.ids.size(); ++i) {
        require_count(rows.versions[i], rows.ids[i], "version");
        require_count(rows.frequencies[i], rows.ids[i], "frequency");
        require_count(rows.seen[i], rows.ids[i], "seen");
    }
}

/// Rows and counters that are appended for the blocks of an insertion: the first of each block, and
/// the end.
struct Appended {
    std::vector<std::uint64_t> rows;
    std::vector<std::uint64_t> counters;
};

/// An id that cannot be inserted; `place` is where the map has it.
struct Conflict {
    std::int64_t id;
    EntryLocation place;
};

/// Adds the ids of all blocks to the map, which has memory for them; on a conflict, none.
std::optional<Conflict> add_to_map(IdMap& map, std::span<const WholeRows> blocks,
                                   const Appended& appended) noexcept {
    std::optional<Conflict> found;
    std::size_t added = 0;
    std::uint64_t row = appended.rows.front();
    std::uint64_t counter = appended.counters.front();
    for (const WholeRows& block : blocks) {
        const std::size_t size = block.ids.size();
        for (std::size_t i = 0; i < size && !found; ++i) {
            if (i + ahead < size) map.prefetch(hash_id(block.ids[i + ahead]));
            const EntryLocation place = block.admitted[i] != 0 ? EntryLocation::row(row++)
                                                               : EntryLocation::counter(counter++);
            const EntryLocation had{map.add(block.ids[i], place.packed, hash_id(block.ids[i]))};
            if (!had.is_absent()) found = Conflict{block.ids[i], had};
            added += had.is_absent() ? 1U : 0U;
        }
    }
    for (const WholeRows& block : blocks) {
        for (std::size_t i = 0; found && i < block.ids.size() && added != 0; ++i, --added)
            map.erase(block.ids[i]);
    }
    return found;
}

[[noreturn]] void throw_conflict(const Conflict& conflict, const Appended& appended) {
    const auto& firsts = conflict.place.is_row() ? appended.rows : appended.counters;
    const bool twice = conflict.place.number() >= firsts.front();
    throw std::invalid_argument("id " + std::to_string(conflict.id) +
                                (twice ? " is given twice, expected each id once"
                                       : " is in the table already, expected ids that are not"));
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

void Table::insert(std::span<const WholeRows> blocks, int threads) {
    const std::lock_guard lock(state_->mutex);
    State& s = *state_;
    const std::size_t bytes = s.format.bytes(static_cast<std::size_t>(width()));
    Appended to{{s.rows.size()}, {s.counters.size()}};
    for (const WholeRows& block : blocks) {
        require_own_buckets(options_, block.ids);
        require_counts(block);
        const std::size_t rows = block.values.size() / bytes;
        to.rows.push_back(to.rows.back() + rows);
        to.counters.push_back(to.counters.back() + block.ids.size() - rows);
    }
    const std::uint64_t rows = to.rows.back() - to.rows.front();
    const std::uint64_t counters = to.counters.back() - to.counters.front();
    s.map.reserve(s.map.size() + rows + counters);
    s.dead_to_change();
    s.rows.append(rows);
    std::optional<Conflict> conflict;
    try {
        s.counters.append(counters);
        // The map is one portion, the rows of each block another; nothing in them throws.
        const auto count = static_cast<std::int64_t>(blocks.size()) + 1;
        parallel_for(count, 1, threads, [&](std::int64_t portion, std::int64_t) {
            if (portion == 0) {
                conflict = add_to_map(s.map, blocks, to);
                return;
            }
            const auto number = static_cast<std::size_t>(portion - 1);
            const WholeRows& block = blocks[number];
            std::uint64_t row = to.rows[number];
            std::uint64_t counter = to.counters[number];
            s.rows.write_values(row, to.rows[number + 1] - row, block.values.data());
            for (std::size_t i = 0; i < block.ids.size(); ++i) {
                RowHead& head = block.admitted[i] != 0 ? s.rows.head_to_change(row++)
                                                       : s.counters.head_to_change(counter++);
                head = {block.ids[i], block.versions[i], block.frequencies[i], block.seen[i]};
            }
        });
        if (conflict) throw_conflict(*conflict, to);
    } catch (...) {
        s.rows.shrink(to.rows.front());
        s.counters.shrink(to.counters.front());
        throw;
    }
    for (const WholeRows& block : blocks) {
        for (std::size_t i = 0; i < block.ids.size() && s.dead->size() != 0; ++i) {
            if (s.dead->find(block.ids[i]) != IdMap::absent) s.dead->erase(block.ids[i]);
        }
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
