// Compiled with SSE4.2 (CMakeLists.txt) and called only where the processor has it.

#ifdef WINDECK_X86

#include <nmmintrin.h>

#include <algorithm>
#include <cstring>

#include "crc32c_ways.hpp"

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

std::uint32_t copied_by_instruction(std::uint32_t before, const std::byte* data, std::size_t size,
                                    std::byte* to) {
    constexpr std::size_t register_bytes = sizeof(__m128i);
    const std::uint32_t state = by_instruction(before, data, size);
    const auto past = reinterpret_cast<std::uintptr_t>(to) % register_bytes;
    const std::size_t first = past == 0 ? 0 : std::min(size, register_bytes - past);
    if (first != 0) std::memcpy(to, data, first);
    std::size_t at = first;
    for (; size - at >= register_bytes; at += register_bytes)
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + at),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + at)));
    if (at != size) std::memcpy(to + at, data + at, size - at);
    _mm_sfence();  // other threads see the bytes before they see what is written after them
    return state;
}

}  // namespace windeck::crc

#endif
