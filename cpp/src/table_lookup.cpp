// Looking up: reading side by side, counting and admitting alone.

#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>

#include "table_batch.hpp"
#include "windeck/parallel.hpp"
#include "windeck/table.hpp"

namespace windeck {
namespace {

constexpr std::int64_t grain = 4096;

std::int64_t length(std::span<const std::int64_t> ids) {
    return static_cast<std::int64_t>(ids.size());
}

std::span<const std::int64_t> part(std::span<const std::int64_t> ids, std::int64_t begin,
                                   std::int64_t end) {
    return ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

/// What a row holds when it is new.
void write_new(const InitialValues& initial, const TableOptions& options, std::int64_t id,
               std::span<float> row) {
    const auto dim = static_cast<std::size_t>(options.dim);
    initial.write(id, row.first(dim));
    std::ranges::fill(row.subspan(dim), options.slot_value);
}

/// Copies the embeddings at s.places, which say absent where there is no row.
template <typename State>
void copy_rows(const State& s, std::span<const std::int64_t> ids, std::size_t dim, float* out,
               int threads) {
    parallel_for(length(ids), grain, threads, [&](std::int64_t from, std::int64_t to) {
        const auto begin = static_cast<std::size_t>(from);
        const auto end = static_cast<std::size_t>(to);
        for (std::size_t i = begin; i < end; ++i) {
            if (i + ahead / 2 < end) {
                const Place next{s.places[i + ahead / 2]};
                if (!next.is_absent()) s.rows.prefetch_values(next.number(), dim);
            }
            const Place place{s.places[i]};
            if (place.is_absent()) {
                s.initial.write(ids[i], {out + i * dim, dim});
            } else {
                std::memcpy(out + i * dim, s.rows.values(place.number()), dim * sizeof(float));
            }
        }
    });
}

}  // namespace

void Table::lookup(std::span<const std::int64_t> ids, float* out, int threads) const {
    const std::shared_lock lock(state_->mutex);
    const State& s = *state_;
    require_own(options_, ids);
    const auto dim = static_cast<std::size_t>(options_.dim);
    parallel_for(length(ids), grain, threads, [&](std::int64_t begin, std::int64_t end) {
        const auto some = part(ids, begin, end);
        float* const into = out + static_cast<std::size_t>(begin) * dim;
        each_place(
            s.map, some,
            [&](Place place) {
                if (place.is_row()) s.rows.prefetch_values(place.number(), dim);
            },
            [&](std::size_t i, Place place) {
                float* const to = into + i * dim;
                if (place.is_row()) {
                    std::memcpy(to, s.rows.values(place.number()), dim * sizeof(float));
                } else {
                    s.initial.write(some[i], {to, dim});
                }
            });
    });
}

void Table::read(std::span<const std::int64_t> ids, float* out, int threads) const {
    const std::shared_lock lock(state_->mutex);
    const State& s = *state_;
    require_own(options_, ids);
    const auto floats = static_cast<std::size_t>(width());
    parallel_for(length(ids), grain, threads, [&](std::int64_t begin, std::int64_t end) {
        const auto some = part(ids, begin, end);
        float* const into = out + static_cast<std::size_t>(begin) * floats;
        each_place(
            s.map, some,
            [&](Place place) {
                if (place.is_row()) s.rows.prefetch_values(place.number(), floats);
            },
            [&](std::size_t i, Place place) {
                float* const to = into + i * floats;
                if (place.is_row()) {
                    std::memcpy(to, s.rows.values(place.number()), floats * sizeof(float));
                } else {
                    write_new(s.initial, options_, some[i], {to, floats});
                }
            });
    });
}

void Table::facts(std::span<const std::int64_t> ids, const IdFacts& out) const {
    const std::shared_lock lock(state_->mutex);
    const State& s = *state_;
    require_own(options_, ids);
    each_place(
        s.map, ids,
        [&](Place place) {
            if (place.is_absent()) return;
            (place.is_row() ? s.rows : s.counters).prefetch_head(place.number());
        },
        [&](std::size_t i, Place place) {
            RowHead head{};
            if (!place.is_absent()) {
                head = (place.is_row() ? s.rows : s.counters).head(place.number());
            }
            if (out.versions != nullptr) out.versions[i] = head.version;
            if (out.frequencies != nullptr) out.frequencies[i] = head.frequency;
            if (out.seen != nullptr) out.seen[i] = head.seen;
            if (out.admitted != nullptr) out.admitted[i] = place.is_row() ? 1 : 0;
        });
}

void Table::lookup_insert(std::span<const std::int64_t> ids, float* out, int threads) {
    const std::lock_guard lock(state_->mutex);
    State& s = *state_;
    require_own(options_, ids);
    s.places.resize(std::max(s.places.size(), ids.size()));
    const std::uint64_t rows_before = s.rows.size();
    const auto fill_new = [&] {
        const auto fresh = static_cast<std::int64_t>(s.rows.size() - rows_before);
        parallel_for(fresh, 256, threads, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                const std::uint64_t row = rows_before + static_cast<std::uint64_t>(i);
                write_new(s.initial, options_, s.rows.head(row).id,
                          {s.rows.values_to_change(row), static_cast<std::size_t>(width())});
            }
        });
    };
    try {
        s.count_all(ids, options_.admit_after);
    } catch (...) {
        fill_new();
        throw;
    }
    fill_new();
    copy_rows(s, ids, static_cast<std::size_t>(options_.dim), out, threads);
}

}  // namespace windeck
