#include "windeck/table/blocks.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "table/snapshot_order.hpp"
#include "table/table_state.hpp"
#include "windeck/base/parallel.hpp"
#include "windeck/checkpoint/crc32c.hpp"

namespace windeck {
namespace {

constexpr std::size_t line = 64;

/// Where blocks end, by what entries take and the buckets they are in.
class BlockCutter {
  public:
    BlockCutter(std::span<const std::int64_t> ids, std::span<const std::uint8_t> states,
                const BlockRules& rules)
        : most_(rules.most), before_(ids.size() + 1), buckets_(ids.size()) {
        const std::size_t alone = rules.entry_bytes(false);
        const std::size_t with_row = rules.entry_bytes(true);
        for (std::size_t i = 0; i < ids.size(); ++i) {
            before_[i + 1] = before_[i] + (states[i] == state_row ? with_row : alone);
            buckets_[i] = static_cast<std::uint16_t>(bucket_of(ids[i]));
        }
        for (const int border : rules.borders)
            ++borders_before_[static_cast<std::size_t>(border)];
        for (std::size_t bucket = 1; bucket < borders_before_.size(); ++bucket)
            borders_before_[bucket] += borders_before_[bucket - 1];
    }

    std::uint16_t bucket(std::size_t entry) const { return buckets_[entry]; }

    std::vector<std::size_t> ends() {
        const std::size_t count = buckets_.size();
        for (std::size_t first = 0; first < count;) {
            std::size_t end = first + 1;
            while (end < count && buckets_[end] == buckets_[first])
                ++end;
            add_bucket(first, end);
            first = end;
        }
        if (start_ < count) ends_.push_back(count);
        return std::move(ends_);
    }

  private:
    bool crosses_border(std::size_t first) const {
        return first != 0 &&
               borders_before_[buckets_[first]] != borders_before_[buckets_[first - 1]];
    }

    std::size_t held(std::size_t end) const { return before_[end] - before_[start_]; }

    void end_at(std::size_t entry) {
        ends_.push_back(entry);
        start_ = entry;
    }

    void add_bucket(std::size_t first, std::size_t end) {
        if (first != start_ && (crosses_border(first) || held(end) > most_)) end_at(first);
        while (held(end) > most_ && end - start_ > 1) {
            const auto over =
                std::upper_bound(before_.begin() + static_cast<std::ptrdiff_t>(start_),
                                 before_.end(), before_[start_] + most_);
            const auto fit = static_cast<std::size_t>(over - before_.begin()) - 1;
            end_at(std::max(start_ + 1, fit));
        }
    }

    std::size_t most_;
    std::vector<std::size_t> before_;  // bytes of all entries before each
    std::vector<std::uint16_t> buckets_;
    std::array<std::uint32_t, bucket_count> borders_before_{};  // how many up to each bucket
    std::size_t start_ = 0;
    std::vector<std::size_t> ends_;
};

struct Columns {
    std::int64_t* ids;
    std::int64_t* versions;
    std::int64_t* frequencies;
    std::int64_t* seen;
    std::uint8_t* states;
    std::byte* values;
};

/// Writes a block but for its columns, has `fill` write these, and sums up all of it.
template <typename Fill>
void write(EntryBlock& block, const BlockRules& rules, std::byte* memory, const Fill& fill) {
    std::byte* const begin = memory + block.at;
    const BlockLayout layout(block.entries);
    const auto prelude = BlockLayout::prelude(block, rules);
    std::memcpy(begin, prelude.data(), BlockLayout::prelude_bytes);
    const auto numbers = [&](std::size_t at) {
        return reinterpret_cast<std::int64_t*>(begin + at);
    };
    fill(Columns{numbers(layout.ids()), numbers(layout.versions()), numbers(layout.frequencies()),
                 numbers(layout.seen()), reinterpret_cast<std::uint8_t*>(begin + layout.states()),
                 begin + layout.values()});
    std::fill(begin + layout.states_end(), begin + layout.values(), std::byte{0});
    block.sum = crc32c({begin, block.bytes});
}

/// The entries of a block, as views of its memory.
WholeRows rows_of(const StoredBlock& block, const BlockRules& rules) {
    const std::size_t n = block.known.entries;
    const BlockLayout layout(n);
    const auto numbers = [&](std::size_t at) {
        return std::span(reinterpret_cast<const std::int64_t*>(block.memory + at), n);
    };
    return {.ids = numbers(layout.ids()),
            .versions = numbers(layout.versions()),
            .frequencies = numbers(layout.frequencies()),
            .seen = numbers(layout.seen()),
            .admitted = {reinterpret_cast<const std::uint8_t*>(block.memory + layout.states()), n},
            .values = {block.memory + layout.values(), rules.row_bytes() * block.known.rows}};
}

/// Whether the fields and the size of a block are as known, and it has no dead entries.
bool begins_as_known(const StoredBlock& block, const BlockRules& rules) {
    const EntryBlock& known = block.known;
    const std::size_t bytes = BlockLayout(known.entries).bytes(rules, known.rows);
    if (known.entries == 0 || known.dead != 0 || known.bytes != bytes) return false;
    const auto prelude = BlockLayout::prelude(known, rules);
    return std::memcmp(block.memory, prelude.data(), BlockLayout::prelude_bytes) == 0;
}

/// Whether entries are as many as known, sorted, and begin and end as known.
bool are_as_known(const WholeRows& rows, const EntryBlock& known) {
    const std::size_t n = rows.ids.size();
    std::size_t admitted = 0;
    bool right = true;
    for (const std::uint8_t state : rows.admitted) {
        admitted += state;
        right = right && state <= state_row;
    }
    std::int64_t before = bucket_of(rows.ids[0]);
    right = right && admitted == known.rows && rows.ids[0] == known.first_id &&
            before == known.first_bucket;
    for (std::size_t i = 1; i < n; ++i) {
        const std::int64_t bucket = bucket_of(rows.ids[i]);
        right = right && (bucket > before || (bucket == before && rows.ids[i] > rows.ids[i - 1]));
        before = bucket;
    }
    return right && before == known.last_bucket;
}

/// The entries in the buckets [first, end) of sorted ones.
WholeRows in_buckets(const WholeRows& rows, std::size_t row_bytes, int first, int end) {
    const auto at = [&](int bucket) {
        const auto found = std::ranges::lower_bound(rows.ids, bucket, {}, bucket_of);
        return static_cast<std::size_t>(found - rows.ids.begin());
    };
    const std::size_t from = at(first);
    const std::size_t size = at(end) - from;
    const auto admitted = rows.admitted.subspan(from, size);
    const auto before = std::ranges::count(rows.admitted.first(from), state_row);
    const auto inside = std::ranges::count(admitted, state_row);
    return {rows.ids.subspan(from, size),
            rows.versions.subspan(from, size),
            rows.frequencies.subspan(from, size),
            rows.seen.subspan(from, size),
            admitted,
            rows.values.subspan(row_bytes * static_cast<std::size_t>(before),
                                row_bytes * static_cast<std::size_t>(inside))};
}

template <typename T>
void copy(T* to, const T* from, std::size_t count) {
    if (count != 0) std::memcpy(to, from, count * sizeof(T));
}

}  // namespace

std::vector<EntryBlock> cut_blocks(std::span<const std::int64_t> ids,
                                   std::span<const std::uint8_t> states, const BlockRules& rules) {
    BlockCutter cutter(ids, states, rules);
    std::vector<EntryBlock> out;
    std::size_t first = 0;
    std::size_t at = 0;
    for (const std::size_t end : cutter.ends()) {
        const auto own = states.subspan(first, end - first);
        EntryBlock block;
        block.first = first;
        block.entries = static_cast<std::uint32_t>(own.size());
        block.rows = static_cast<std::uint32_t>(std::ranges::count(own, state_row));
        block.dead = static_cast<std::uint32_t>(std::ranges::count(own, state_dead));
        block.first_id = ids[first];
        block.first_bucket = cutter.bucket(first);
        block.last_bucket = cutter.bucket(end - 1);
        // So that its rows begin with a cache line.
        const BlockLayout layout(block.entries);
        const std::size_t front = layout.values();
        block.at = (at + front + line - 1) / line * line - front;
        block.bytes = layout.bytes(rules, block.rows);
        at = block.at + block.bytes;
        out.push_back(block);
        first = end;
    }
    return out;
}

std::size_t bytes_of(std::span<const EntryBlock> blocks) {
    return blocks.empty() ? 0 : blocks.back().at + blocks.back().bytes;
}

void write_blocks(std::span<EntryBlock> blocks, const BlockRules& rules,
                  const EntryColumns& entries, std::byte* memory) {
    const std::byte* values = entries.values;
    for (EntryBlock& block : blocks) {
        write(block, rules, memory, [&](const Columns& to) {
            copy(to.ids, entries.ids + block.first, block.entries);
            copy(to.versions, entries.versions + block.first, block.entries);
            copy(to.frequencies, entries.frequencies + block.first, block.entries);
            copy(to.seen, entries.seen + block.first, block.entries);
            copy(to.states, entries.states + block.first, block.entries);
            copy(to.values, values, rules.row_bytes() * block.rows);
        });
        values += rules.row_bytes() * block.rows;
    }
}

std::vector<EntryBlock> cut_blocks(const TableSnapshot::Selection& selection,
                                   const BlockRules& rules) {
    std::vector<std::int64_t> ids;
    std::vector<std::uint8_t> states;
    ids.reserve(selection.entries.size());
    states.reserve(selection.entries.size());
    for (const TableSnapshot::Entry& entry : selection.entries) {
        ids.push_back(entry.id);
        states.push_back(EntryLocation{entry.place}.is_row() ? state_row : state_counted);
    }
    return cut_blocks(ids, states, rules);
}

void write_blocks(std::span<EntryBlock> blocks, const BlockRules& rules,
                  const TableSnapshot& snapshot, const TableSnapshot::Selection& selection,
                  std::byte* memory, int threads) {
    const auto count = static_cast<std::int64_t>(blocks.size());
    parallel_for(count, 1, threads, [&](std::int64_t number, std::int64_t) {
        EntryBlock& block = blocks[static_cast<std::size_t>(number)];
        write(block, rules, memory, [&](const Columns& to) {
            // Of an entry that is not dead, its state is whether it was admitted.
            snapshot.read(selection.entries.subspan(block.first, block.entries), to.ids,
                          {to.versions, to.frequencies, to.seen, to.states}, to.values);
        });
    });
}

std::optional<std::size_t> insert_blocks(Table& table, std::span<const StoredBlock> blocks,
                                         const BlockRules& rules, std::optional<std::int64_t> after,
                                         int first, int end, int threads) {
    std::vector<std::size_t> starts{0};
    for (const StoredBlock& block : blocks)
        starts.push_back(starts.back() + block.known.entries);
    // Copies of what addresses depend on: the memory might be changed after it was checked.
    std::vector<std::int64_t> ids(starts.back());
    std::vector<std::uint8_t> states(starts.back());
    std::vector<WholeRows> parts(blocks.size());
    std::vector<std::uint8_t> right(blocks.size());
    const auto count = static_cast<std::int64_t>(blocks.size());
    parallel_for(count, 1, threads, [&](std::int64_t number, std::int64_t) {
        const auto i = static_cast<std::size_t>(number);
        if (!begins_as_known(blocks[i], rules)) return;
        WholeRows& rows = parts[i] = rows_of(blocks[i], rules);
        std::ranges::copy(rows.ids, ids.data() + starts[i]);
        std::ranges::copy(rows.admitted, states.data() + starts[i]);
        rows.ids = {ids.data() + starts[i], rows.ids.size()};
        rows.admitted = {states.data() + starts[i], rows.admitted.size()};
        right[i] = are_as_known(rows, blocks[i].known) ? 1 : 0;
    });
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        WholeRows& rows = parts[i];
        if (right[i] == 0 || (after && !before_by_bucket(*after, rows.ids.front()))) return i;
        after = rows.ids.back();
        rows = in_buckets(rows, rules.row_bytes(), first, end);
    }
    table.insert(parts, threads);
    return std::nullopt;
}

}  // namespace windeck
