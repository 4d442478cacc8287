// Sorting the ids of a bucket.

#pragma once

#include <span>
#include <vector>

#include "windeck/table/table.hpp"

namespace windeck {

/// Sorts by id, ascending; no id is there twice. `scratch` is memory kept from call to call.
///
/// The ids of a bucket are drawn by their hash, so they lie as evenly as all ids do. They are dealt
/// out into about as many bins as there are of them, of ranges alike, and what is in one bin is
/// compared: O(n) for ids without large gaps, O(n log n) for any.
void sort_by_id(std::span<TableSnapshot::Entry> entries,
                std::vector<TableSnapshot::Entry>& scratch);

}  // namespace windeck
