// Reads of values from a table file of RocksDB, with the CRC32C of their bodies.
//
// A value is the only entry of an uncompressed block. The block has these pieces: its begin, which
// is known (the lengths and the kind of the entry and its key); 7 bytes of the sequence number; the
// value, as a head and a body; its end, which is known and the same for all; and the masked CRC32C
// of all these. read_values() reads them with pread(), so that the position of the file does not
// matter, and sums each piece of a body while it is in the processor's cache. With `streamed`,
// bodies are written past the caches: for memory that the caller does not read soon, since a store
// through the cache reads the memory first. O(bytes); 64 KiB of memory a thread; thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace windeck {

struct FileValue {
    std::uint64_t offset = 0;  // of its block
    std::span<const std::byte> begin;
    std::span<std::byte> head;
    std::span<std::byte> body;
    /// Of the body; none if the block cannot be read, has another begin or end, or is damaged. Then
    /// the memory of the value is undefined.
    std::optional<std::uint32_t> sum;
};

/// Reads values, up to `threads` at a time, and sets their sums.
void read_values(int file, std::span<FileValue> values, std::span<const std::byte> end,
                 bool streamed, int threads = 1);

}  // namespace windeck
