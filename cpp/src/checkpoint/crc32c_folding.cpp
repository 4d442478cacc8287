// Compiled with AVX-512F, PCLMULQDQ, VPCLMULQDQ and SSE4.2 (CMakeLists.txt), and called only where
// the processor has them.
//
// Modulo the polynomial, 16 bytes followed by D more bits stand for their polynomial times x^D; so
// they may be replaced by that product, added to the 16 bytes at that place (Gopal et al., "Fast
// CRC computation for generic polynomials using PCLMULQDQ instruction", 2009). The product is made
// of both halves of the 16 bytes, each times a constant of 32 bits. What is left in the end, 64
// bytes and less, is summed by the instruction of SSE4.2.

#ifdef WINDECK_X86

#include <immintrin.h>

#include "checkpoint/crc32c_sums.hpp"

namespace windeck::crc {
namespace {

/// Bytes of a register, and of those that are folded at once: four, since one product takes as long
/// as four begin.
constexpr std::size_t register_bytes = sizeof(__m512i);
constexpr std::size_t round_bytes = 4 * register_bytes;

/// x^n modulo the polynomial, bits reversed: the highest of 33 is x^0. A product of two
/// reversed polynomials is one bit too low, which the lowest of the 33 bits corrects.
constexpr long long power(unsigned n) {
    std::uint32_t state = 0x80000000;
    for (unsigned i = 0; i < n; ++i)
        state = (state >> 1) ^ ((state & 1) != 0 ? polynomial : 0);
    return static_cast<long long>(std::uint64_t{state} << 1);
}

/// Returns `later`, which is `bytes` bytes after `earlier`, with `earlier` folded in. Of each 16
/// bytes the low half comes first in memory, so 64 bits more follow it; a product of 64 by 33 bits
/// has room for 32 of them.
template <std::size_t bytes>
__m512i fold(__m512i earlier, __m512i later) {
    constexpr long long first = power(8 * bytes + 32);
    constexpr long long second = power(8 * bytes - 32);
    const __m512i by = _mm512_set4_epi64(second, first, second, first);
    const __m512i low = _mm512_clmulepi64_epi128(earlier, by, 0x00);
    const __m512i high = _mm512_clmulepi64_epi128(earlier, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, later, 0x96);  // all three added
}

}  // namespace

std::uint32_t by_folding(std::uint32_t before, const std::byte* data, std::size_t size) {
    if (size < round_bytes) return by_instruction(before, data, size);
    const auto next = [&] {
        const __m512i some = _mm512_loadu_si512(data);
        data += register_bytes;
        size -= register_bytes;
        return some;
    };
    const __m128i start = _mm_cvtsi32_si128(static_cast<int>(before));
    __m512i a = _mm512_xor_si512(next(), _mm512_zextsi128_si512(start));
    __m512i b = next();
    __m512i c = next();
    __m512i d = next();
    while (size >= round_bytes) {
        a = fold<round_bytes>(a, next());
        b = fold<round_bytes>(b, next());
        c = fold<round_bytes>(c, next());
        d = fold<round_bytes>(d, next());
    }
    d = fold<register_bytes>(fold<register_bytes>(fold<register_bytes>(a, b), c), d);
    while (size >= register_bytes)
        d = fold<register_bytes>(d, next());
    alignas(register_bytes) std::byte left[register_bytes];
    _mm512_store_si512(left, d);
    // `before` is in the first 16 bytes of what is left.
    return by_instruction(by_instruction(0, left, register_bytes), data, size);
}

}  // namespace windeck::crc

#endif
