// CRC32C: the cyclic redundancy check of Castagnoli's polynomial 0x1edc6f41, as iSCSI (RFC 3720),
// ext4 and RocksDB use it: reflected, begun and ended with all bits inverted. It finds every error
// in up to 32 consecutive bits, and every odd number of flipped bits.
//
// crc32c(bytes, before) goes on from the sum of the bytes before: for a split of `bytes` into a and
// b, crc32c(b, crc32c(a)) == crc32c(bytes). The sum of no bytes is 0.
//
// crc32c_joined(sum of a, sum of b, size of b) is the sum of a and b one after the other, from
// their sums alone: in O(log n), without a look at the bytes.
//
// crc32c_copied(to, from, before) is crc32c(from, before), and `to` has the bytes of `from` then:
// in one pass, and past the caches where the processor can. For what nobody reads soon: else it
// would push out of the caches what is wanted there.
//
// O(n); reads memory of any alignment; thread-safe; never throws but for a WINDECK_SIMD that cannot
// be honoured (dispatch.hpp). Where the processor multiplies polynomials in wide registers (AVX-512
// with VPCLMULQDQ), 256 bytes are folded into as many that follow; where it has but the instruction
// for this sum (SSE4.2), and with WINDECK_SIMD=avx2, three streams are summed at once, since one
// instruction waits for the one before it; elsewhere, and with WINDECK_SIMD=baseline, by tables,
// eight bytes at a time. The result is the same.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace windeck {

/// The sum of `bytes` after bytes whose sum is `before`.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

/// The same, and the bytes are at `to` afterwards, which is as long and elsewhere.
std::uint32_t crc32c_copied(std::byte* to, std::span<const std::byte> from,
                            std::uint32_t before = 0);

/// Whether crc32c_copied loads each byte once: then the sum is that of what it stored, whoever
/// writes to `from` meanwhile, and memory that is in no cache is summed as quickly as it is copied.
bool crc32c_copies_once();

/// The sum of `bytes` after those of `before`, always by tables.
std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t before = 0);

/// The sum of bytes with the sum `first` followed by `second_size` bytes with the sum `second`.
std::uint32_t crc32c_joined(std::uint32_t first, std::uint32_t second, std::uint64_t second_size);

}  // namespace windeck
