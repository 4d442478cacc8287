// Blocks of entries, written and parsed again.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "check.hpp"
#include "windeck/checkpoint/crc32c.hpp"
#include "windeck/table/blocks.hpp"

namespace windeck {
namespace {

struct Columns {
    std::vector<std::int64_t> ids;
    std::vector<std::int64_t> versions;
    std::vector<std::int64_t> frequencies;
    std::vector<std::int64_t> seen;
    std::vector<std::uint8_t> states;
    std::vector<float> values;

    EntryColumns view() const {
        return {ids.data(),  versions.data(), frequencies.data(),
                seen.data(), states.data(),   std::as_bytes(std::span(values)).data()};
    }
};

Columns some(std::size_t count, std::size_t width, std::mt19937_64& random) {
    const auto by_bucket = [](std::int64_t a, std::int64_t b) {
        return std::pair(bucket_of(a), a) < std::pair(bucket_of(b), b);
    };
    std::set<std::int64_t, decltype(by_bucket)> ids(by_bucket);
    while (ids.size() < count)
        ids.insert(static_cast<std::int64_t>(random()));
    Columns out;
    for (const std::int64_t id : ids) {
        out.ids.push_back(id);
        out.versions.push_back(static_cast<std::int64_t>(random() >> 2));
        out.frequencies.push_back(static_cast<std::int64_t>(random() >> 2));
        out.seen.push_back(static_cast<std::int64_t>(random() >> 2));
        out.states.push_back(static_cast<std::uint8_t>(random() % 3));
        for (std::size_t i = 0; i < width && out.states.back() == state_row; ++i)
            out.values.push_back(static_cast<float>(random() % 1000));
    }
    return out;
}

/// Reads an unaligned number.
template <typename T>
T at(const std::byte* from, std::size_t number = 0) {
    T out;
    std::memcpy(&out, from + number * sizeof(T), sizeof(T));
    return out;
}

/// The entries of a block, appended to those that were read before.
void read(const EntryBlock& block, const BlockRules& rules, const std::byte* memory,
          Columns& into) {
    const std::byte* from = memory + block.at;
    const std::uint32_t prelude[] = {block.entries, block.rows,  block.dead,
                                     rules.dim,     rules.slots, 0};
    for (std::size_t i = 0; i < 6; ++i)
        check(at<std::uint32_t>(from, i) == prelude[i], "a block begins otherwise");
    check(block.sum == crc32c({from, block.bytes}), "a block's sum is another");
    from += sizeof(prelude);
    for (auto* const column : {&into.ids, &into.versions, &into.frequencies, &into.seen}) {
        for (std::size_t i = 0; i < block.entries; ++i)
            column->push_back(at<std::int64_t>(from, i));
        from += block.entries * sizeof(std::int64_t);
    }
    for (std::size_t i = 0; i < block.entries; ++i)
        into.states.push_back(at<std::uint8_t>(from, i));
    from += block.entries;
    for (; (from - memory - static_cast<std::ptrdiff_t>(block.at)) % 8 != 0; ++from)
        check(*from == std::byte{0}, "what is between is not 0");
    for (std::size_t i = 0; i < block.rows * rules.width(); ++i)
        into.values.push_back(at<float>(from, i));
    from += block.rows * rules.width() * sizeof(float);
    check(from == memory + block.at + block.bytes, "a block has other bytes");
}

/// Blocks end at borders, and none is larger than it may be.
void ends_where_it_must(const std::vector<EntryBlock>& blocks, const BlockRules& rules) {
    for (const EntryBlock& block : blocks) {
        const std::size_t size = 33 * block.entries + sizeof(float) * rules.width() * block.rows;
        check(size <= rules.most || block.entries == 1, "a block is too large");
        check(std::ranges::none_of(rules.borders,
                                   [&](int bucket) {
                                       const auto border = static_cast<std::uint32_t>(bucket);
                                       return block.first_bucket < border &&
                                              border <= block.last_bucket;
                                   }),
              "a block goes on after a border");
    }
}

/// Rows begin with a cache line, and no more than that needs is left free between blocks.
void lie_close(const std::vector<EntryBlock>& blocks) {
    std::size_t end = 0;
    for (const EntryBlock& block : blocks) {
        const std::size_t rows = block.at + (24 + 33 * std::size_t{block.entries} + 7) / 8 * 8;
        check(rows % 64 == 0, "a block's rows do not begin with a cache line");
        check(block.at >= end && block.at - end < 64, "a block lies elsewhere");
        end = block.at + block.bytes;
    }
    check(bytes_of(blocks) == end, "blocks need other memory");
}

void columns_come_back() {
    std::mt19937_64 random(1);
    const std::vector<int> borders{1, 128, 512, 1023};
    for (const std::size_t count : {0, 1, 2, 9, 700}) {
        for (const std::size_t most : {0, 100, 5000, 1 << 20}) {
            const BlockRules rules{{.dim = 3, .slots = 1}, most, borders};
            const Columns given = some(count, rules.width(), random);
            auto blocks = cut_blocks(given.ids, given.states, rules);
            std::vector<std::byte> memory(bytes_of(blocks) + 64, std::byte{0xff});
            write_blocks(blocks, rules, given.view(), memory.data());
            ends_where_it_must(blocks, rules);
            lie_close(blocks);
            Columns found;
            for (const EntryBlock& block : blocks) {
                check(block.first == found.ids.size(), "blocks do not follow one another");
                check(block.first_id == given.ids[block.first] &&
                          block.first_bucket == bucket_of(block.first_id),
                      "a block begins with another id");
                read(block, rules, memory.data(), found);
                check(block.last_bucket == bucket_of(found.ids.back()),
                      "a block ends with another bucket");
            }
            check(found.ids == given.ids && found.versions == given.versions &&
                      found.frequencies == given.frequencies && found.seen == given.seen &&
                      found.states == given.states && found.values == given.values,
                  "other entries come back");
        }
    }
}

void a_snapshot_gives_the_same() {
    TableOptions options;
    options.dim = 5;
    options.admit_after = 2;
    Table table(options);
    std::mt19937_64 random(2);
    std::vector<std::int64_t> ids(3000);
    for (auto& id : ids)
        id = static_cast<std::int64_t>(random());
    std::vector<float> out(ids.size() * 5);
    table.lookup_insert(ids, std::as_writable_bytes(std::span(out)).data());
    table.lookup_insert(std::span(ids).first(1700), std::as_writable_bytes(std::span(out)).data());
    const auto snapshot = table.snapshot();
    const auto selection = snapshot->select(0, bucket_count, -1);
    const std::size_t size = selection.entries.size();
    std::vector<std::int64_t> keys(size), versions(size), frequencies(size), seen(size);
    std::vector<std::uint8_t> states(size);
    std::vector<float> values(1700 * 5);
    snapshot->read(selection.entries, keys.data(),
                   {versions.data(), frequencies.data(), seen.data(), states.data()},
                   std::as_writable_bytes(std::span(values)).data());
    const BlockRules rules{{.dim = 5, .slots = 0}, 4000, {}};
    auto blocks = cut_blocks(selection, rules);
    auto others = cut_blocks(keys, states, rules);
    std::vector<std::byte> memory(bytes_of(blocks));
    std::vector<std::byte> other(bytes_of(others));
    write_blocks(blocks, rules, *snapshot, selection, memory.data());
    write_blocks(others, rules,
                 {keys.data(), versions.data(), frequencies.data(), seen.data(), states.data(),
                  std::as_bytes(std::span(values)).data()},
                 other.data());
    check(blocks.size() == others.size() && blocks.size() > 10, "other blocks");
    for (std::size_t i = 0; i < blocks.size(); ++i)
        check(blocks[i].sum == others[i].sum && blocks[i].at == others[i].at, "another block");
}

}  // namespace
}  // namespace windeck

int main() {
    windeck::columns_come_back();
    windeck::a_snapshot_gives_the_same();
    return 0;
}
