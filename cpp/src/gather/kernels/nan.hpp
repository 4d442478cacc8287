// Which of eight values are NaN, as eight bits; and bits as bytes.

#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "gather/kernels/cast.hpp"

namespace windeck::WINDECK_ISA {

template <typename T>
inline unsigned nan_bits(const T* in) {
    unsigned bits = 0;
    for (unsigned i = 0; i < 8; ++i)
        bits |= (is_nan(in[i]) ? 1U : 0U) << i;
    return bits;
}

#if defined(__AVX2__)
inline unsigned nan_bits(const double* in) {
    const __m256d a = _mm256_loadu_pd(in);
    const __m256d b = _mm256_loadu_pd(in + 4);
    return static_cast<unsigned>(_mm256_movemask_pd(_mm256_cmp_pd(a, a, _CMP_UNORD_Q))) |
           static_cast<unsigned>(_mm256_movemask_pd(_mm256_cmp_pd(b, b, _CMP_UNORD_Q))) << 4;
}

inline unsigned nan_bits(const float* in) {
    const __m256 a = _mm256_loadu_ps(in);
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
#elif defined(__SSE2__)
inline unsigned nan_bits(const double* in) {
    unsigned bits = 0;
    for (unsigned i = 0; i < 8; i += 2) {
        const __m128d a = _mm_loadu_pd(in + i);
        bits |= static_cast<unsigned>(_mm_movemask_pd(_mm_cmpunord_pd(a, a))) << i;
    }
    return bits;
}

inline unsigned nan_bits(const float* in) {
    const __m128 a = _mm_loadu_ps(in);
    const __m128 b = _mm_loadu_ps(in + 4);
    return static_cast<unsigned>(_mm_movemask_ps(_mm_cmpunord_ps(a, a))) |
           static_cast<unsigned>(_mm_movemask_ps(_mm_cmpunord_ps(b, b))) << 4;
}
#endif

/// Byte i of the result is bit i, for eight bits.
inline std::uint64_t bytes_of(unsigned bits) {
    const std::uint64_t alone = bits * 0x0101010101010101U & 0x8040201008040201U;
    return (alone + 0x7f7f7f7f7f7f7f7fU) >> 7 & 0x0101010101010101U;
}

}  // namespace windeck::WINDECK_ISA
