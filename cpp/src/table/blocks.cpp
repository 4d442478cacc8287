#include "windeck/table/blocks.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "table/table_state.hpp"
#include "windeck/checkpoint/crc32c.hpp"

namespace windeck {
namespace {

constexpr std::size_t prelude_bytes = 24;
constexpr std::size_t entry_bytes = 33;  // beside its row
constexpr std::size_t line = 64;

constexpr std::size_t padded(std::size_t bytes) {
    return (bytes + 7) / 8 * 8;
}

constexpr std::size_t rows_at(std::size_t entries) {
    return padded(prelude_bytes + entry_bytes * entries);
}

/// Where blocks end, by what entries take and the buckets they are in.
class BlockPlanner {
  public:
    BlockPlanner(std::span<const std::int64_t> ids, std::span<const std::uint8_t> states,
                 const BlockRules& rules)
        : most_(rules.most), before_(ids.size() + 1), buckets_(ids.size()) {
        const std::size_t row = rules.row_bytes();
        for (std::size_t i = 0; i < ids.size(); ++i) {
            before_[i + 1] = before_[i] + entry_bytes + (states[i] == state_row ? row : 0);
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

/// Writes a block but for its columns, has `fill` write these, and sums up all of it. There are
/// little-endian processors only.
template <typename Fill>
void write(EntryBlock& block, const BlockRules& rules, std::byte* memory, const Fill& fill) {
    std::byte* const begin = memory + block.at;
    const std::uint32_t narrow = rules.dtype == DType::bfloat16 ? 1 : 0;
    const std::uint32_t prelude[] = {block.entries, block.rows,  block.dead,
                                     rules.dim,     rules.slots, narrow};
    static_assert(sizeof(prelude) == prelude_bytes);
    std::memcpy(begin, prelude, prelude_bytes);
    auto* const ids = reinterpret_cast<std::int64_t*>(begin + prelude_bytes);
    const std::size_t n = block.entries;
    auto* const states = reinterpret_cast<std::uint8_t*>(ids + 4 * n);
    std::byte* const rows = begin + rows_at(n);
    fill(Columns{ids, ids + n, ids + 2 * n, ids + 3 * n, states, rows});
    std::fill(reinterpret_cast<std::byte*>(states + n), rows, std::byte{0});
    block.sum = crc32c({begin, block.bytes});
}

template <typename T>
void copy(T* to, const T* from, std::size_t count) {
    if (count != 0) std::memcpy(to, from, count * sizeof(T));
}

}  // namespace

std::vector<EntryBlock> plan_blocks(std::span<const std::int64_t> ids,
                                    std::span<const std::uint8_t> states, const BlockRules& rules) {
    BlockPlanner planner(ids, states, rules);
    std::vector<EntryBlock> out;
    std::size_t first = 0;
    std::size_t at = 0;
    for (const std::size_t end : planner.ends()) {
        const auto own = states.subspan(first, end - first);
        EntryBlock block;
        block.first = first;
        block.entries = static_cast<std::uint32_t>(own.size());
        block.rows = static_cast<std::uint32_t>(std::ranges::count(own, state_row));
        block.dead = static_cast<std::uint32_t>(std::ranges::count(own, state_dead));
        block.first_id = ids[first];
        block.first_bucket = planner.bucket(first);
        block.last_bucket = planner.bucket(end - 1);
        // So that its rows begin with a cache line.
        const std::size_t front = rows_at(block.entries);
        block.at = (at + front + line - 1) / line * line - front;
        block.bytes = front + rules.row_bytes() * block.rows;
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

std::vector<EntryBlock> plan_blocks(const TableSnapshot::Selection& selection,
                                    const BlockRules& rules) {
    std::vector<std::int64_t> ids;
    std::vector<std::uint8_t> states;
    ids.reserve(selection.entries.size());
    states.reserve(selection.entries.size());
    for (const TableSnapshot::Entry& entry : selection.entries) {
        ids.push_back(entry.id);
        states.push_back(EntryLocation{entry.place}.is_row() ? state_row : state_counted);
    }
    return plan_blocks(ids, states, rules);
}

void write_blocks(std::span<EntryBlock> blocks, const BlockRules& rules,
                  const TableSnapshot& snapshot, const TableSnapshot::Selection& selection,
                  std::byte* memory) {
    for (EntryBlock& block : blocks) {
        write(block, rules, memory, [&](const Columns& to) {
            // Of an entry that is not dead, its state is whether it was admitted.
            snapshot.read(selection.entries.subspan(block.first, block.entries), to.ids,
                          {to.versions, to.frequencies, to.seen, to.states}, to.values);
        });
    }
}

}  // namespace windeck
