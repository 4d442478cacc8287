// Reads of values from a file, with the CRC32C of their bodies.
//
// A value is three consecutive pieces of a file: a head, a body and an end. read_values() reads
// them with pread(), so that the position of the file does not matter, and sums each piece of a
// body while it is in the processor's cache. With `streamed`, bodies are written past the caches:
// for memory that the caller does not read soon, since a store through the cache reads the memory
// first. O(bytes); 64 KiB of memory a thread; thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace windeck {

struct FileValue {
    std::uint64_t offset = 0;
    std::span<std::byte> head;
    std::span<std::byte> body;
    std::span<std::byte> end;
    std::optional<std::uint32_t> sum;  // of the body; none if the file ends early or cannot be read
};

/// Reads values, up to `threads` at a time, and sets their sums.
void read_values(int file, std::span<FileValue> values, bool streamed, int threads = 1);

}  // namespace windeck
