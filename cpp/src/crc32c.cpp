#include "windeck/crc32c.hpp"

#include <cstdlib>
#include <string_view>

#include "crc32c_streams.hpp"
#include "windeck/dispatch.hpp"

namespace windeck {
namespace {

#ifdef WINDECK_X86
bool has_instruction() {
    const char* const wish = std::getenv("WINDECK_SIMD");
    simd();  // a wish that cannot be honoured is an error here as everywhere
    const bool tables = wish != nullptr && std::string_view(wish) == "baseline";
    return !tables && __builtin_cpu_supports("sse4.2") != 0;
}
#endif

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

std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t before) {
    const auto& table = crc::by_bytes;
    const auto at = [&](std::size_t i) { return static_cast<std::uint32_t>(bytes[i]); };
    std::uint32_t state = ~before;
    std::size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
        const std::uint32_t low =
            state ^ (at(i) | at(i + 1) << 8 | at(i + 2) << 16 | at(i + 3) << 24);
        state = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^ table[5][low >> 16 & 0xff] ^
                table[4][low >> 24] ^ table[3][at(i + 4)] ^ table[2][at(i + 5)] ^
                table[1][at(i + 6)] ^ table[0][at(i + 7)];
    }
    for (; i < bytes.size(); ++i)
        state = (state >> 8) ^ table[0][(state ^ at(i)) & 0xff];
    return ~state;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
#ifdef WINDECK_X86
    static const bool instruction = has_instruction();
    if (instruction) return ~crc::by_instruction(~before, bytes.data(), bytes.size());
#endif
    return crc32c_by_tables(bytes, before);
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
