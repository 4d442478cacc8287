// Blocks: the entries of a table in the format of values of a store.
//
// An entry is an id with its metadata, and its row if it has one; it may also be only counted, or
// dead. The format of a block, little-endian and without gaps, is
//
//     entries u32, rows u32, dead u32, dim u32, slots u32, dtype u32: 0 float32, 1 bfloat16
//     ids, versions, frequencies, seen     int64[entries] each
//     states                               uint8[entries], then 0s up to a multiple of 8 bytes
//     values                               dtype[rows, (1 + slots) * dim], of those with a row
//
// with the entries sorted by (bucket, id). A block ends where the next bucket does not fit, and at
// borders; a bucket larger than a block is cut. An entry larger than a block is a block of its own.
//
// plan_blocks() computes the bounds and the addresses of blocks; write_blocks() writes them and
// computes their checksums while they are in the cache. O(n); thread-safe; sizes of arrays are not
// checked.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "windeck/table/table.hpp"

namespace windeck {

/// States of an entry.
inline constexpr std::uint8_t state_counted = 0;
inline constexpr std::uint8_t state_row = 1;
inline constexpr std::uint8_t state_dead = 2;

struct BlockRules {
    std::uint32_t dim = 1;
    std::uint32_t slots = 0;
    DType dtype = DType::float32;
    std::size_t most = 0;          // bytes of entries in a block
    std::span<const int> borders;  // buckets, ascending, before which a block ends

    std::size_t width() const { return (std::size_t{1} + slots) * dim; }
    std::size_t row_bytes() const { return width() * static_cast<std::size_t>(size_of(dtype)); }
};

/// A block, and its place in memory that is aligned to a cache line.
struct EntryBlock {
    std::size_t at = 0;  // its first byte
    std::size_t bytes = 0;
    std::size_t first = 0;  // its first entry, of all that were planned
    std::uint32_t entries = 0;
    std::uint32_t rows = 0;
    std::uint32_t dead = 0;
    std::uint32_t first_bucket = 0;  // of its first and last entry
    std::uint32_t last_bucket = 0;
    std::int64_t first_id = 0;
    std::uint32_t sum = 0;  // CRC32C of its bytes, set by write_blocks()
};

/// The blocks of sorted entries.
std::vector<EntryBlock> plan_blocks(std::span<const std::int64_t> ids,
                                    std::span<const std::uint8_t> states, const BlockRules& rules);

/// The memory that blocks need, in bytes.
std::size_t bytes_of(std::span<const EntryBlock> blocks);

/// Entries as columns; `states` as passed to plan_blocks().
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
std::vector<EntryBlock> plan_blocks(const TableSnapshot::Selection& selection,
                                    const BlockRules& rules);
void write_blocks(std::span<EntryBlock> blocks, const BlockRules& rules,
                  const TableSnapshot& snapshot, const TableSnapshot::Selection& selection,
                  std::byte* memory);

}  // namespace windeck
