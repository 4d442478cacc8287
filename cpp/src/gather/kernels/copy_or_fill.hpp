// Floats copied as they are, NaN replaced and marked in the same pass.

#pragma once

#include <cstdint>

#include "gather/kernels/cast.hpp"
#include "gather/kernels/nan.hpp"

namespace windeck::WINDECK_ISA {

/// Values [begin, n) one by one; returns whether all are present.
template <typename T, bool masked>
inline bool copy_or_fill_each(const T* in, std::int64_t begin, std::int64_t n, T fill, T* out,
                              std::uint8_t* __restrict present) {
    std::uint8_t all = 1;
    for (std::int64_t i = begin; i < n; ++i) {
        const T value = in[i];
        const std::uint8_t is_present = is_nan(value) ? 0 : 1;
        out[i] = is_present != 0 ? value : fill;
        if (masked) present[i] = is_present;
        all &= is_present;
    }
    return all != 0;
}

/// The first values, as many as intrinsics are written for: none for most types. Returns their
/// number and clears `all` where one is missing.
template <bool masked, typename T>
inline std::int64_t copy_or_fill_vectors(const T*, std::int64_t, T, T*, std::uint8_t*, bool&) {
    return 0;
}

#if defined(__AVX512BW__)
template <bool masked>
inline std::int64_t copy_or_fill_vectors(const float* in, std::int64_t n, float fill, float* out,
                                         std::uint8_t* present, bool& all) {
    const __m512 fills = _mm512_set1_ps(fill);
    const __m512i ones = _mm512_set1_epi8(1);
    __mmask64 missing = 0;
    std::int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        __mmask16 ordered[4];
        for (int k = 0; k < 4; ++k) {
            const __m512 value = _mm512_loadu_ps(in + i + 16 * k);
            ordered[k] = _mm512_cmp_ps_mask(value, value, _CMP_ORD_Q);
            _mm512_storeu_ps(out + i + 16 * k, _mm512_mask_blend_ps(ordered[k], fills, value));
        }
        const __mmask64 is_present = _mm512_kunpackd(_mm512_kunpackw(ordered[3], ordered[2]),
                                                     _mm512_kunpackw(ordered[1], ordered[0]));
        if (masked) _mm512_storeu_si512(present + i, _mm512_maskz_mov_epi8(is_present, ones));
        missing |= ~is_present;
    }
    for (; i < n; i += 16) {
        const auto here = static_cast<__mmask16>(n - i < 16 ? (1U << (n - i)) - 1 : 0xffffU);
        const __m512 value = _mm512_maskz_loadu_ps(here, in + i);  // 0 after the end
        const __mmask16 ordered = _mm512_cmp_ps_mask(value, value, _CMP_ORD_Q);
        _mm512_mask_storeu_ps(out + i, here, _mm512_mask_blend_ps(ordered, fills, value));
        if (masked) {
            _mm_mask_storeu_epi8(present + i, here, _mm_maskz_mov_epi8(ordered, _mm_set1_epi8(1)));
        }
        missing |= static_cast<__mmask16>(~ordered);
    }
    all = missing == 0;
    return n;
}
#elif defined(__AVX2__)
template <bool masked>
inline std::int64_t copy_or_fill_vectors(const float* in, std::int64_t n, float fill, float* out,
                                         std::uint8_t* present, bool& all) {
    const __m256 fills = _mm256_set1_ps(fill);
    const __m256i ones = _mm256_set1_epi8(1);
    // Two packs leave groups of four bytes in the order 0 2 4 6 1 3 5 7.
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i is_present = ones;
    unsigned missing = 0;
    std::int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i ordered[4];
        for (int k = 0; k < 4; ++k) {
            const __m256 value = _mm256_loadu_ps(in + i + 8 * k);
            const __m256 mask = _mm256_cmp_ps(value, value, _CMP_ORD_Q);
            _mm256_storeu_ps(out + i + 8 * k, _mm256_blendv_ps(fills, value, mask));
            ordered[k] = _mm256_castps_si256(mask);
        }
        const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(ordered[0], ordered[1]),
                                                  _mm256_packs_epi32(ordered[2], ordered[3]));
        const __m256i bytes = _mm256_and_si256(_mm256_permutevar8x32_epi32(packed, in_order), ones);
        if (masked) _mm256_storeu_si256(reinterpret_cast<__m256i*>(present + i), bytes);
        is_present = _mm256_and_si256(is_present, bytes);
    }
    for (; i + 8 <= n; i += 8) {
        const __m256 value = _mm256_loadu_ps(in + i);
        const __m256 mask = _mm256_cmp_ps(value, value, _CMP_ORD_Q);
        const unsigned bits = ~static_cast<unsigned>(_mm256_movemask_ps(mask)) & 0xffU;
        _mm256_storeu_ps(out + i, _mm256_blendv_ps(fills, value, mask));
        const std::uint64_t bytes = bytes_of(bits ^ 0xffU);
        if (masked) __builtin_memcpy(present + i, &bytes, 8);
        missing |= bits;
    }
    all = missing == 0 && _mm256_testc_si256(is_present, ones) != 0;
    return i;
}
#endif

template <typename T, bool masked>
inline bool copy_or_fill_all(const T* in, std::int64_t n, T fill, T* out, std::uint8_t* present) {
    bool all = true;
    const std::int64_t done = copy_or_fill_vectors<masked>(in, n, fill, out, present, all);
    return copy_or_fill_each<T, masked>(in, done, n, fill, out, present) && all;
}

/// As GatherKernels::copy_or_fill.
template <typename T>
bool copy_or_fill(const void* in, std::int64_t n, const void* fill, void* out,
                  std::uint8_t* present) {
    T value;
    __builtin_memcpy(&value, fill, sizeof(T));
    const T* const from = static_cast<const T*>(in);
    T* const to = static_cast<T*>(out);
    return present == nullptr ? !copy_or_fill_all<T, false>(from, n, value, to, present)
                              : !copy_or_fill_all<T, true>(from, n, value, to, present);
}

}  // namespace windeck::WINDECK_ISA
