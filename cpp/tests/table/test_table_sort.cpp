// Sorting by ids against std::sort.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <unordered_set>
#include <vector>

#include "check.hpp"
#include "table/sort.hpp"

namespace windeck {
namespace {

using Entry = TableSnapshot::Entry;
using Ids = std::unordered_set<std::int64_t>;

std::vector<Entry> scratch;  // kept, as a table does

void sorts(const Ids& ids) {
    std::vector<Entry> entries;
    for (const std::int64_t id : ids)
        entries.push_back({id, entries.size() * 7});
    std::vector<Entry> expected = entries;
    std::sort(expected.begin(), expected.end(),
              [](const Entry& a, const Entry& b) { return a.id < b.id; });
    sort_by_id(entries, scratch);
    check(std::ranges::equal(entries, expected, [](const Entry& a, const Entry& b) {
        return a.id == b.id && a.place == b.place;
    }));
}

/// Ids with gaps of every size: their bits are cut off at random.
Ids uneven(std::size_t count, std::mt19937_64& random) {
    Ids ids;
    while (ids.size() < count)
        ids.insert(static_cast<std::int64_t>(random()) >> (random() % 50));
    return ids;
}

void sorts_ids_of_any_kind() {
    std::mt19937_64 random(1);
    constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    for (const std::size_t count : {0, 1, 2, 23, 24, 25, 26, 255, 256, 257, 1023, 1025, 5000}) {
        Ids dense;
        Ids wide;
        Ids skewed{least, most, 0};
        for (std::size_t i = 0; i < count; ++i) {
            dense.insert(static_cast<std::int64_t>(i) - 100);
            wide.insert(static_cast<std::int64_t>(random()));
            skewed.insert(static_cast<std::int64_t>(i) + 1000);
        }
        sorts(dense);
        sorts(wide);
        sorts(skewed);
        sorts(uneven(count, random));
    }
    for (std::size_t count = 0; count < 200; ++count)
        sorts(uneven(count, random));
}

}  // namespace
}  // namespace windeck

int main() {
    windeck::sorts_ids_of_any_kind();
}
