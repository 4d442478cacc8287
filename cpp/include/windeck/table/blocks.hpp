// Blocks: the entries of a table in the format of values of a store.
//
// block_layout.hpp has their bytes. Entries are sorted by (bucket, id). A block ends where the next
// bucket does not fit, and at borders; a bucket larger than a block is cut. An entry larger than a
// block is a block of its own.
//
// cut_blocks() computes the bounds and the addresses of blocks; write_blocks() writes them and
// computes their checksums while they are in the cache. O(n); thread-safe; sizes of arrays are not
// checked. insert_blocks() checks blocks that were stored, and inserts them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "windeck/table/block_layout.hpp"
#include "windeck/table/table.hpp"

namespace windeck {

struct BlockRules : RowShape {
    std::size_t most = 0;          // bytes of entries in a block
    std::span<const int> borders;  // buckets, ascending, before which a block ends
};

/// A block, and its place in memory that is aligned to a cache line.
struct EntryBlock : BlockSize {
    std::size_t at = 0;  // its first byte
    std::size_t bytes = 0;
    std::size_t first = 0;           // its first entry, of all that were divided
    std::uint32_t first_bucket = 0;  // of its first and last entry
    std::uint32_t last_bucket = 0;
    std::int64_t first_id = 0;
    std::uint32_t sum = 0;  // CRC32C of its bytes, set by write_blocks()
};

/// The blocks of sorted entries.
std::vector<EntryBlock> cut_blocks(std::span<const std::int64_t> ids,
                                   std::span<const std::uint8_t> states, const BlockRules& rules);

/// The memory that blocks need, in bytes.
std::size_t bytes_of(std::span<const EntryBlock> blocks);

/// Entries as columns; `states` as passed to cut_blocks().
struct EntryColumns {
    const std::int64_t* ids;
    const std::int64_t* versions;
    const std::int64_t* frequencies;
    const std::int64_t* seen;
    const std::uint8_t* states;
    const std::byte* values;
};

void write_blocks(std::span<EntryBlock> blocks, const BlockRules& rules,
                  const EntryColumns& entries, std::byte* memory);

/// The blocks of a selection, which has no dead entries.
std::vector<EntryBlock> cut_blocks(const TableSnapshot::Selection& selection,
                                   const BlockRules& rules);
void write_blocks(std::span<EntryBlock> blocks, const BlockRules& rules,
                  const TableSnapshot& snapshot, const TableSnapshot::Selection& selection,
                  std::byte* memory, int threads = 1);

/// A block in memory that is aligned to 8 bytes, and what is known of it: all but at, first, sum.
struct StoredBlock {
    const std::byte* memory;
    EntryBlock known;
};

/// Inserts the entries of blocks that are in the buckets [first, end) into a table with as many
/// bytes a row. Before, it checks of each block that it is as known, without dead entries and
/// sorted, and that it begins after the block before; the first block, after the id `after`.
/// Returns the number of the first block that is not so; then nothing was inserted. Throws as
/// Table::insert(). `rules` are those of the blocks; `most` and `borders` are ignored.
std::optional<std::size_t> insert_blocks(Table& table, std::span<const StoredBlock> blocks,
                                         const BlockRules& rules, std::optional<std::int64_t> after,
                                         int first, int end, int threads);

}  // namespace windeck
