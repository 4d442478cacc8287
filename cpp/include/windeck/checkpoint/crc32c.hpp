// CRC32C: the cyclic redundancy check of Castagnoli's polynomial 0x1edc6f41, as iSCSI (RFC 3720),
// ext4 and RocksDB use it: reflected, begun and ended with all bits inverted. It finds every error
// in up to 32 consecutive bits, and every odd number of flipped bits.
//
// crc32c(bytes, before) continues the sum of the bytes before: for a split of `bytes` into a and
// b, crc32c(b, crc32c(a)) == crc32c(bytes). The sum of no bytes is 0.
//
// crc32c_joined(sum of a, sum of b, size of b) is the sum of a and b one after the other, from
// their sums alone, in O(log n).
//
// O(n); reads memory of any alignment; thread-safe; throws only for an invalid WINDECK_SIMD
// (dispatch.hpp). Where the processor has the instruction for this sum (SSE4.2), three streams are
// summed at once, since one instruction waits for the one before it; elsewhere, and with
// WINDECK_SIMD=baseline, tables are used, eight bytes at a time. The result is the same.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace windeck {

/// The sum of `bytes` after bytes whose sum is `before`.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

/// The sum of `bytes` after those of `before`, always by tables.
std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t before = 0);

/// The sum of bytes with the sum `first` followed by `second_size` bytes with the sum `second`.
std::uint32_t crc32c_joined(std::uint32_t first, std::uint32_t second, std::uint64_t second_size);

}  // namespace windeck
