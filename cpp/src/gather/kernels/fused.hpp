// The commonest conversion, float64 to float32 with a mask, in one pass instead of two: a value is
// loaded once, compared with itself, scaled, replaced where it is NaN, and narrowed.

#pragma once

#include <cstdint>

#include "gather/kernels/cast.hpp"
#include "gather/kernels/nan.hpp"

namespace windeck::WINDECK_ISA {

enum class Factors { none, one, many };

template <Factors factors>
inline double scale_one(double value, const double* scale, const double* shift, std::int64_t i) {
    if (factors == Factors::none) return value;
    const std::int64_t at = factors == Factors::many ? i : 0;
    return value * scale[at] + shift[at];
}

#if defined(__AVX2__)
/// Sixteen presences: 64-bit masks of four values each narrowed to bytes 1 and 0.
inline __m128i narrow_masks(const __m256d masks[4]) {
    const __m256i a =
        _mm256_packs_epi32(_mm256_castpd_si256(masks[0]), _mm256_castpd_si256(masks[1]));
    const __m256i b =
        _mm256_packs_epi32(_mm256_castpd_si256(masks[2]), _mm256_castpd_si256(masks[3]));
    // Two equal bytes a value; values 0 1 4 5 8 9 12 13 in the lower half, the others in the upper.
    const __m256i pairs = _mm256_and_si256(_mm256_packs_epi16(a, b), _mm256_set1_epi16(1));
    const __m128i low = _mm256_castsi256_si128(pairs);
    const __m128i high = _mm256_extracti128_si256(pairs, 1);
    return _mm_packus_epi16(_mm_unpacklo_epi32(low, high), _mm_unpackhi_epi32(low, high));
}

/// The greatest multiple of 16 values; returns their number and clears `all` where one is missing.
template <Factors factors>
inline std::int64_t fuse_vectors(const double* in, std::int64_t n, const double* scale,
                                 const double* shift, double fill, float* out,
                                 std::uint8_t* present, bool& all) {
    const __m256d fills = _mm256_set1_pd(fill);
    const __m256d factor = factors == Factors::one ? _mm256_set1_pd(*scale) : fills;
    const __m256d summand = factors == Factors::one ? _mm256_set1_pd(*shift) : fills;
    __m128i is_present = _mm_set1_epi8(1);
    std::int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256d masks[4];
        for (int k = 0; k < 4; ++k) {
            const std::int64_t at = i + 4 * k;
            const __m256d value = _mm256_loadu_pd(in + at);
            masks[k] = _mm256_cmp_pd(value, value, _CMP_ORD_Q);
            __m256d scaled = value;
            if (factors == Factors::one) {
                scaled = _mm256_add_pd(_mm256_mul_pd(value, factor), summand);
            } else if (factors == Factors::many) {
                scaled = _mm256_add_pd(_mm256_mul_pd(value, _mm256_loadu_pd(scale + at)),
                                       _mm256_loadu_pd(shift + at));
            }
            scaled = _mm256_blendv_pd(fills, scaled, masks[k]);
            _mm_storeu_ps(out + at, _mm256_cvtpd_ps(scaled));
        }
        const __m128i sixteen = narrow_masks(masks);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(present + i), sixteen);
        is_present = _mm_and_si128(is_present, sixteen);
    }
    all = _mm_movemask_epi8(_mm_cmpeq_epi8(is_present, _mm_setzero_si128())) == 0;
    return i;
}
#else
template <Factors factors>
inline std::int64_t fuse_vectors(const double*, std::int64_t, const double*, const double*, double,
                                 float*, std::uint8_t*, bool&) {
    return 0;
}
#endif

/// Returns whether all values are present.
template <Factors factors>
bool fuse(const double* in, std::int64_t n, const double* scale, const double* shift, double fill,
          float* out, std::uint8_t* present) {
    bool all = true;
    std::int64_t i = fuse_vectors<factors>(in, n, scale, shift, fill, out, present, all);
    for (; i < n; ++i) {
        const bool is_present = !is_nan(in[i]);
        const double value = scale_one<factors>(in[i], scale, shift, i);
        out[i] = static_cast<float>(is_present ? value : fill);
        present[i] = is_present ? 1 : 0;
        all &= is_present;
    }
    return all;
}

/// As convert64 to float32 with a fill, and find_nan at once. Returns whether a value is missing.
inline bool convert_and_find_nan(const double* in, std::int64_t n, const double* scale,
                                 const double* shift, std::int64_t period, float fill, float* out,
                                 std::uint8_t* present) {
    const auto wide = static_cast<double>(fill);
    if (period == 0) {
        return !fuse<Factors::none>(in, n, scale, shift, wide, out, present);
    }
    if (period == 1) {
        return !fuse<Factors::one>(in, n, scale, shift, wide, out, present);
    }
    bool all = true;
    for (std::int64_t i = 0; i < n; i += period) {
        const std::int64_t some = n - i < period ? n - i : period;
        all &= fuse<Factors::many>(in + i, some, scale, shift, wide, out + i, present + i);
    }
    return !all;
}

}  // namespace windeck::WINDECK_ISA
