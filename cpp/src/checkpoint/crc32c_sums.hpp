// The implementations of the checksum and their tables; crc32c.cpp chooses one.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace windeck::crc {

/// Bytes of one of three streams.
inline constexpr std::size_t stream_bytes = 4096;

/// The polynomial, bits reversed.
inline constexpr std::uint32_t polynomial = 0x82f63b78;

using Table = std::array<std::uint32_t, 256>;

/// The register after one zero byte.
constexpr std::uint32_t after_byte(std::uint32_t state) {
    for (int bit = 0; bit < 8; ++bit)
        state = (state >> 1) ^ ((state & 1) != 0 ? polynomial : 0);
    return state;
}

/// by_bytes[k][b]: the register that held b, after k + 1 zero bytes.
constexpr std::array<Table, 8> make_by_bytes() {
    std::array<Table, 8> tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t state = byte;
        for (Table& table : tables)
            table[byte] = state = after_byte(state);
    }
    return tables;
}
inline constexpr std::array<Table, 8> by_bytes = make_by_bytes();

/// skip[k][b]: the register that held b in its byte k, after `stream_bytes` zero bytes. Linear, so
/// 32 registers with one bit set are carried through and the others are sums of them.
constexpr std::array<Table, 4> make_skip() {
    std::array<std::uint32_t, 32> bits{};
    for (int bit = 0; bit < 32; ++bit) {
        std::uint32_t state = std::uint32_t{1} << bit;
        for (std::size_t i = 0; i < stream_bytes; ++i)
            state = (state >> 8) ^ by_bytes[0][state & 0xff];
        bits[static_cast<std::size_t>(bit)] = state;
    }
    std::array<Table, 4> tables{};
    for (std::size_t k = 0; k < 4; ++k)
        for (std::size_t byte = 0; byte < 256; ++byte)
            for (std::size_t bit = 0; bit < 8; ++bit)
                if ((byte >> bit & 1) != 0) tables[k][byte] ^= bits[8 * k + bit];
    return tables;
}

/// The register after bytes; bits are not inverted here.
using SumFunction = std::uint32_t (*)(std::uint32_t state, const std::byte* data, std::size_t size);

/// By tables, eight bytes at a time: for any processor.
std::uint32_t by_tables(std::uint32_t state, const std::byte* data, std::size_t size);

#ifdef WINDECK_X86
/// By the instruction of SSE4.2, three streams at once, since each waits for the one before it.
std::uint32_t by_instruction(std::uint32_t state, const std::byte* data, std::size_t size);
#endif

/// The implementations for this processor, regardless of WINDECK_SIMD; the faster one is last.
std::vector<SumFunction> implementations();

}  // namespace windeck::crc
