// The bytes of a saved table: blocks of entries, and lines of the index of blocks. The only C++
// file that knows offsets, widths and the order of fields; in Python it is
// src/windeck/checkpoint/format/table_blocks.py.
//
// An entry is an id with its metadata, and its row if it has one; it may also be only counted, or
// dead. The format of a block, little-endian and without gaps, is
//
//     entries u32, rows u32, dead u32, dim u32, slots u32, dtype u32: 0 float32, 1 bfloat16
//     ids, versions, frequencies, seen     int64[entries] each
//     states                               uint8[entries], then 0s up to a multiple of 8 bytes
//     values                               dtype[rows, (1 + slots) * dim], of those with a row
//
// with the entries sorted by (bucket, id). A line of the index describes a block:
//
//     first id i64, first bucket u32, last bucket u32, entries u32, rows u32, dead u32, 0 u32
//
// There are little-endian processors only.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "windeck/base/dtype.hpp"

namespace windeck {

/// States of an entry.
inline constexpr std::uint8_t state_counted = 0;
inline constexpr std::uint8_t state_row = 1;
inline constexpr std::uint8_t state_dead = 2;

/// The shape of a row: an embedding of `dim` numbers, then `slots` optimizer slots of that size.
struct RowShape {
    std::uint32_t dim = 1;
    std::uint32_t slots = 0;
    DType dtype = DType::float32;

    std::size_t width() const { return (std::size_t{1} + slots) * dim; }
    std::size_t row_bytes() const { return width() * static_cast<std::size_t>(size_of(dtype)); }
    /// Bytes of an entry in a block.
    std::size_t entry_bytes(bool has_row) const;
};

/// The numbers of entries in a block, of those with a row and of dead ones.
struct BlockSize {
    std::uint32_t entries = 0;
    std::uint32_t rows = 0;
    std::uint32_t dead = 0;
};

/// Where the columns of a block with so many entries begin, in bytes.
class BlockLayout {
  public:
    explicit BlockLayout(std::size_t entries) : entries_(entries) {}

    std::size_t ids() const { return prelude_bytes; }
    std::size_t versions() const { return ids() + number_bytes * entries_; }
    std::size_t frequencies() const { return versions() + number_bytes * entries_; }
    std::size_t seen() const { return frequencies() + number_bytes * entries_; }
    std::size_t states() const { return seen() + number_bytes * entries_; }
    std::size_t states_end() const { return states() + entries_; }
    std::size_t values() const { return (states_end() + 7) / 8 * 8; }
    /// Of the block.
    std::size_t bytes(const RowShape& shape, std::size_t rows) const {
        return values() + shape.row_bytes() * rows;
    }

    /// The bytes before the columns.
    using Prelude = std::array<std::uint32_t, 6>;
    static Prelude prelude(const BlockSize& size, const RowShape& shape) {
        const std::uint32_t dtype = shape.dtype == DType::bfloat16 ? 1 : 0;
        return {size.entries, size.rows, size.dead, shape.dim, shape.slots, dtype};
    }
    static constexpr std::size_t prelude_bytes = sizeof(Prelude);

    /// Of an entry without its row.
    static constexpr std::size_t number_bytes = sizeof(std::int64_t);
    static constexpr std::size_t entry_bytes = 4 * number_bytes + 1;

  private:
    std::size_t entries_;
};

inline std::size_t RowShape::entry_bytes(bool has_row) const {
    return BlockLayout::entry_bytes + (has_row ? row_bytes() : 0);
}

/// A line of the index.
struct IndexLine {
    std::int64_t first_id;
    std::uint32_t first_bucket;
    std::uint32_t last_bucket;
    BlockSize size;
    std::uint32_t zero;

    static IndexLine at(const std::byte* memory) {
        IndexLine line;
        std::memcpy(&line, memory, sizeof(line));
        return line;
    }
};
static_assert(sizeof(IndexLine) == 32);

}  // namespace windeck
