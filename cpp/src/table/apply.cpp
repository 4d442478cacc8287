// Updates: the gradients of a batch, summed for each row in order of occurrence, then one step.

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "table/batch.hpp"
#include "table/row_occurrences.hpp"
#include "table/update.hpp"
#include "windeck/base/parallel.hpp"
#include "windeck/table/table.hpp"

namespace windeck {
namespace {

/// The gradient of a row: its only one, or their sum, made in `sum`.
const float* summed(const RowOccurrences& occurrences, const RowOccurrences::Row& row,
                    const float* gradients, std::vector<float>& sum) {
    const std::size_t dim = sum.size();
    if (row.first == row.last) return gradients + row.first * dim;
    std::copy_n(gradients + row.first * dim, dim, sum.data());
    for (std::size_t i = occurrences.next[row.first]; i != RowOccurrences::none;
         i = occurrences.next[i]) {
        const float* const more = gradients + i * dim;
        for (std::size_t j = 0; j < dim; ++j)
            sum[j] += more[j];
    }
    return sum.data();
}

}  // namespace

std::int64_t Table::apply(std::span<const std::int64_t> ids, const float* gradients,
                          const Update& update, int threads) {
    const std::int64_t needed = slots_needed(update.kind);
    if (options_.slots < needed) {
        throw std::invalid_argument("the table has " + std::to_string(options_.slots) +
                                    " slots, expected at least " + std::to_string(needed) +
                                    " for this optimizer");
    }
    const std::lock_guard lock(state_->mutex);
    State& s = *state_;
    require_own_buckets(options_, ids);
    const auto dim = static_cast<std::size_t>(options_.dim);
    s.places.resize(std::max(s.places.size(), ids.size()));
    for_each_location(
        s.map, ids, [](std::size_t, EntryLocation place) { return place; },
        [&](std::size_t i, EntryLocation place) { s.places[i] = place.packed; });
    RowOccurrences& occurrences = s.occurrences;
    occurrences.make(std::span(s.places).first(ids.size()));
    for (const RowOccurrences::Row& row : occurrences.rows)
        s.rows.make_writable(row.number);

    // Nothing below throws but for want of memory for `sum`, so that is made sure of first.
    const RowUpdate step(update, s.clock + 1, dim);
    const auto count = static_cast<std::int64_t>(occurrences.rows.size());
    const std::int64_t grain = std::max<std::int64_t>(1, 65536 / static_cast<std::int64_t>(dim));
    ++s.clock;
    parallel_for(count, grain, threads, [&](std::int64_t begin, std::int64_t end) {
        std::vector<float> sum(dim);
        std::vector<float> wide(s.format.is_bfloat16() ? static_cast<std::size_t>(width()) : 0);
        for (auto u = static_cast<std::size_t>(begin); u < static_cast<std::size_t>(end); ++u) {
            if (u + 8 < static_cast<std::size_t>(end)) {
                const std::uint64_t soon = occurrences.rows[u + 8].number;
                s.rows.prefetch_head(soon);
                s.rows.prefetch_values(soon, s.format.bytes(dim));
            }
            const RowOccurrences::Row& row = occurrences.rows[u];
            std::byte* const values = s.rows.values_to_change(row.number);
            const float* const gradient = summed(occurrences, row, gradients, sum);
            if (!wide.empty()) s.format.read(values, wide);
            step(gradient, wide.empty() ? reinterpret_cast<float*>(values) : wide.data());
            if (!wide.empty()) s.format.write(wide, values);
            s.rows.head_to_change(row.number).version = s.clock;
        }
    });
    return count;
}

}  // namespace windeck
