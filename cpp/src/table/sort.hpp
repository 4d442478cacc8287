// Sorting the ids of a bucket.

#pragma once

#include <span>
#include <vector>

#include "windeck/table/table.hpp"

namespace windeck {

/// Sorts unique ids, ascending. `scratch` is memory that is reused between calls.
///
/// A bin sort: buckets are chosen by hash, so the ids of a bucket are as evenly distributed as all
/// ids. They go into about n bins of equal ranges, which are sorted by insertion. O(n) for ids
/// without large gaps, O(n log n) for any.
void sort_by_id(std::span<TableSnapshot::Entry> entries,
                std::vector<TableSnapshot::Entry>& scratch);

}  // namespace windeck
