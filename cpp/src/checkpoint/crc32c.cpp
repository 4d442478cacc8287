#include "windeck/checkpoint/crc32c.hpp"

#include <cstdlib>
#include <string_view>
#include <vector>

#include "checkpoint/crc32c_sums.hpp"
#include "windeck/base/dispatch.hpp"

#ifdef WINDECK_X86
#include "base/processor.hpp"
#endif

namespace windeck {
namespace {

/// The faster implementation, unless WINDECK_SIMD asks for the portable one.
crc::SumFunction choose() {
    simd();  // throws for an invalid WINDECK_SIMD
    const char* const requested = std::getenv("WINDECK_SIMD");
    const bool portable = requested != nullptr && std::string_view(requested) == "baseline";
    return portable ? crc::by_tables : crc::implementations().back();
}

/// The product of two polynomials modulo ours; bits reversed, so the highest is x^0.
std::uint32_t times(std::uint32_t a, std::uint32_t b) {
    std::uint32_t product = 0;
    for (std::uint32_t bit = 0x80000000; bit != 0; bit >>= 1) {
        if ((a & bit) != 0) product ^= b;
        b = (b >> 1) ^ ((b & 1) != 0 ? crc::polynomial : 0);
    }
    return product;
}

}  // namespace

std::uint32_t crc::by_tables(std::uint32_t state, const std::byte* data, std::size_t size) {
    const auto at = [&](std::size_t i) { return static_cast<std::uint32_t>(data[i]); };
    for (; size >= 8; size -= 8, data += 8) {
        const std::uint32_t low = state ^ (at(0) | at(1) << 8 | at(2) << 16 | at(3) << 24);
        state = by_bytes[7][low & 0xff] ^ by_bytes[6][low >> 8 & 0xff] ^
                by_bytes[5][low >> 16 & 0xff] ^ by_bytes[4][low >> 24] ^ by_bytes[3][at(4)] ^
                by_bytes[2][at(5)] ^ by_bytes[1][at(6)] ^ by_bytes[0][at(7)];
    }
    for (; size != 0; --size, ++data)
        state = (state >> 8) ^ by_bytes[0][(state ^ at(0)) & 0xff];
    return state;
}

std::vector<crc::SumFunction> crc::implementations() {
    std::vector<crc::SumFunction> found{by_tables};
#ifdef WINDECK_X86
    if (processor().sse42) found.push_back(by_instruction);
#endif
    return found;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
    static const crc::SumFunction sum = choose();
    return ~sum(~before, bytes.data(), bytes.size());
}

std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t before) {
    return ~crc::by_tables(~before, bytes.data(), bytes.size());
}

// The inverted bits at the begin and the end of both sums cancel out, so what is left is linear:
// the first sum, carried through as many zero bytes as the second has, that is times x^(8 size).
std::uint32_t crc32c_joined(std::uint32_t first, std::uint32_t second, std::uint64_t second_size) {
    std::uint32_t power = 0x80000000;   // x^0
    std::uint32_t square = 0x00800000;  // x^8, then x^16, x^32, ...
    for (; second_size != 0; second_size >>= 1) {
        if ((second_size & 1) != 0) power = times(power, square);
        square = times(square, square);
    }
    return times(power, first) ^ second;
}

}  // namespace windeck
