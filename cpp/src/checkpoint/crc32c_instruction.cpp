// Compiled with SSE4.2 (CMakeLists.txt) and called only where the processor has it.

#ifdef WINDECK_X86

#include <nmmintrin.h>

#include <cstring>

#include "checkpoint/crc32c_sums.hpp"

namespace windeck::crc {
namespace {

constexpr std::array<Table, 4> skip = make_skip();

std::uint64_t word(const std::byte* data) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, data, 8);
    return bytes;
}

std::uint32_t after_stream(std::uint64_t state) {
    return skip[0][state & 0xff] ^ skip[1][state >> 8 & 0xff] ^ skip[2][state >> 16 & 0xff] ^
           skip[3][state >> 24 & 0xff];
}

}  // namespace

std::uint32_t by_instruction(std::uint32_t before, const std::byte* data, std::size_t size) {
    std::uint64_t state = before;
    for (; size >= 3 * stream_bytes; size -= 3 * stream_bytes, data += 3 * stream_bytes) {
        std::uint64_t second = 0;
        std::uint64_t third = 0;
        for (std::size_t i = 0; i < stream_bytes; i += 8) {
            state = _mm_crc32_u64(state, word(data + i));
            second = _mm_crc32_u64(second, word(data + stream_bytes + i));
            third = _mm_crc32_u64(third, word(data + 2 * stream_bytes + i));
        }
        state = after_stream(state) ^ second;
        state = after_stream(state) ^ third;
    }
    for (; size >= 8; size -= 8, data += 8)
        state = _mm_crc32_u64(state, word(data));
    auto last = static_cast<std::uint32_t>(state);
    for (; size != 0; --size, ++data)
        last = _mm_crc32_u8(last, static_cast<unsigned char>(*data));
    return last;
}

}  // namespace windeck::crc

#endif
