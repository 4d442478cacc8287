#include "table/sort.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace windeck {
namespace {

using Entry = TableSnapshot::Entry;

constexpr int most_bits = 10;    // of the number of a bin: the counts fit the first-level cache
constexpr std::size_t few = 24;  // up to this many are sorted by comparison
constexpr std::uint32_t crowded = 8;  // more in a bin than this are sorted by comparison

bool before(const Entry& a, const Entry& b) {
    return a.id < b.id;
}

/// Copies entries that are nearly in order to where they are in order.
void insert_all(std::span<const Entry> from, Entry* to) {
    for (std::size_t i = 0; i < from.size(); ++i) {
        const Entry entry = from[i];
        std::size_t at = i;
        for (; at > 0 && entry.id < to[at - 1].id; --at)
            to[at] = to[at - 1];
        to[at] = entry;
    }
}

}  // namespace

void sort_by_id(std::span<Entry> entries, std::vector<Entry>& scratch) {
    if (entries.size() <= few) {
        std::ranges::sort(entries, before);
        return;
    }
    const auto [least, most] = std::ranges::minmax_element(entries, before);
    const auto low = static_cast<std::uint64_t>(least->id);
    const std::uint64_t range = static_cast<std::uint64_t>(most->id) - low;
    const int bits = std::min(most_bits, static_cast<int>(std::bit_width(entries.size())));
    const int shift = std::max(0, static_cast<int>(std::bit_width(range)) - bits);
    const auto bin = [&](const Entry& entry) {
        return static_cast<std::size_t>((static_cast<std::uint64_t>(entry.id) - low) >> shift);
    };

    std::array<std::uint32_t, (std::size_t{1} << most_bits)> ends{};
    const std::span<std::uint32_t> bins = std::span(ends).first(std::size_t{1} << bits);
    for (const Entry& entry : entries)
        ++bins[bin(entry)];
    std::uint32_t total = 0;
    for (std::uint32_t& end : bins)
        end = total += end;
    scratch.resize(std::max(scratch.size(), entries.size()));
    for (std::size_t i = entries.size(); i-- > 0;)
        scratch[--bins[bin(entries[i])]] = entries[i];
    // The ends have become the begins.
    for (std::size_t i = 0; i < bins.size(); ++i) {
        const std::uint32_t end = i + 1 < bins.size() ? bins[i + 1] : total;
        if (end - bins[i] > crowded)
            std::sort(scratch.begin() + bins[i], scratch.begin() + end, before);
    }
    insert_all(std::span<const Entry>(scratch).first(entries.size()), entries.data());
}

}  // namespace windeck
