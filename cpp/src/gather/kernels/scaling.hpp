// Floating values scaled, replaced where they are NaN, and rounded to the type of the field.
// `scaled` is the only arithmetic on values: the loops for all pairs of types and the vectors of
// the most common pair, float64 to float32 with a mask, call it.

#pragma once

#include <cstdint>
#include <type_traits>

#include "gather/kernels/cast.hpp"
#include "gather/kernels/nan.hpp"

namespace windeck::WINDECK_ISA {

/// One value, or a vector of values: the product and the sum each rounded to float64.
template <typename Value>
inline Value scaled(Value value, Value factor, Value summand) {
    return value * factor + summand;
}

/// The coefficients of a loop: none, the same for all values, or one for each value.
enum class Factors { none, one, many };

template <Factors factors, typename Value>
inline Value scaled_at(Value value, const double* scale, const double* shift, std::int64_t i) {
    if constexpr (factors == Factors::none) {
        return value;
    } else {
        const std::int64_t at = factors == Factors::many ? i : 0;
        return scaled(value, scale[at], shift[at]);
    }
}

/// What becomes of NaN: it is kept, replaced by the fill, or replaced and marked as missing.
enum class Nan { kept, filled, marked };

/// One value, and the fill instead where `in` is NaN. The choice is made in bits: the compiler
/// turns that into vector code, and a conditional expression into jumps. Where NaN is marked the
/// loop is no vector code in any case.
template <typename Out, Nan nan, typename Value>
inline Out cast_or_fill(Value in, Value value, Value fill) {
    if (nan == Nan::kept) return Cast<Out>::from(value);
    if (nan == Nan::marked) return Cast<Out>::from(is_nan(in) ? fill : value);
    using Bits = std::conditional_t<sizeof(Value) == 8, std::uint64_t, std::uint32_t>;
    const Bits mask = Bits{0} - static_cast<Bits>(in != in);
    const Bits bits =
        (__builtin_bit_cast(Bits, value) & ~mask) | (__builtin_bit_cast(Bits, fill) & mask);
    return Cast<Out>::from(__builtin_bit_cast(Value, bits));
}

/// Values one by one. Returns whether all are present, where NaN is marked.
template <typename Out, Nan nan, Factors factors, typename In>
inline bool convert_each(const In* __restrict in, std::int64_t n, const double* __restrict scale,
                         const double* __restrict shift, double fill, Out* __restrict out,
                         std::uint8_t* __restrict present) {
    // Without coefficients a float holds the value, and any fill of a type that is no wider.
    constexpr bool narrow = factors == Factors::none && sizeof(Out) < 8;
    using Value = std::conditional_t<narrow, In, double>;
    bool all = true;
    for (std::int64_t i = 0; i < n; ++i) {
        const auto value = static_cast<Value>(in[i]);
        out[i] = cast_or_fill<Out, nan>(value, scaled_at<factors>(value, scale, shift, i),
                                        static_cast<Value>(fill));
        if (nan == Nan::marked) {
            const bool is_present = !is_nan(in[i]);
            present[i] = is_present ? 1 : 0;
            all &= is_present;
        }
    }
    return all;
}

/// The first values, as many as intrinsics are written for: none for most types. Returns their
/// number and clears `all` where one is missing.
template <Nan nan, Factors factors, typename In, typename Out>
inline std::int64_t convert_vectors(const In*, std::int64_t, const double*, const double*, double,
                                    Out*, std::uint8_t*, bool&) {
    return 0;
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

template <Factors factors>
inline __m256d scaled_at(__m256d value, const double* scale, const double* shift, std::int64_t i) {
    if constexpr (factors == Factors::none) {
        return value;
    } else if constexpr (factors == Factors::one) {
        return scaled(value, _mm256_set1_pd(*scale), _mm256_set1_pd(*shift));
    } else {
        return scaled(value, _mm256_loadu_pd(scale + i), _mm256_loadu_pd(shift + i));
    }
}

/// The most common pair: a value is loaded once, compared with itself, scaled, replaced where it is
/// NaN, and narrowed. Sixteen at a time.
template <Nan nan, Factors factors>
    requires(nan == Nan::marked)
inline std::int64_t convert_vectors(const double* __restrict in, std::int64_t n,
                                    const double* __restrict scale, const double* __restrict shift,
                                    double fill, float* __restrict out,
                                    std::uint8_t* __restrict present, bool& all) {
    const __m256d fills = _mm256_set1_pd(fill);
    __m128i is_present = _mm_set1_epi8(1);
    std::int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256d masks[4];
        for (int k = 0; k < 4; ++k) {
            const std::int64_t at = i + 4 * k;
            const __m256d value = _mm256_loadu_pd(in + at);
            masks[k] = _mm256_cmp_pd(value, value, _CMP_ORD_Q);
            const __m256d result = scaled_at<factors>(value, scale, shift, at);
            _mm_storeu_ps(out + at, _mm256_cvtpd_ps(_mm256_blendv_pd(fills, result, masks[k])));
        }
        const __m128i sixteen = narrow_masks(masks);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(present + i), sixteen);
        is_present = _mm_and_si128(is_present, sixteen);
    }
    all = _mm_movemask_epi8(_mm_cmpeq_epi8(is_present, _mm_setzero_si128())) == 0;
    return i;
}
#endif

/// Returns whether all values are present, where NaN is marked.
template <Nan nan, Factors factors, typename In, typename Out>
inline bool convert_some(const In* in, std::int64_t n, const double* scale, const double* shift,
                         double fill, Out* out, std::uint8_t* present) {
    bool all = true;
    const std::int64_t done =
        convert_vectors<nan, factors>(in, n, scale, shift, fill, out, present, all);
    const std::int64_t first = factors == Factors::many ? done : 0;  // coefficient
    return convert_each<Out, nan, factors>(in + done, n - done, scale + first, shift + first, fill,
                                           out + done, present + done) &&
           all;
}

/// All values, in stretches of one period of the coefficients.
template <Nan nan, typename In, typename Out>
inline bool convert_all(const In* in, std::int64_t n, const double* scale, const double* shift,
                        std::int64_t period, double fill, Out* out, std::uint8_t* present) {
    if (period == 0) {
        return convert_some<nan, Factors::none>(in, n, scale, shift, fill, out, present);
    }
    if (period == 1) {
        return convert_some<nan, Factors::one>(in, n, scale, shift, fill, out, present);
    }
    bool all = true;
    for (std::int64_t i = 0; i < n; i += period) {
        const std::int64_t some = n - i < period ? n - i : period;
        std::uint8_t* const marks = nan == Nan::marked ? present + i : nullptr;
        all &= convert_some<nan, Factors::many>(in + i, some, scale, shift, fill, out + i, marks);
    }
    return all;
}

/// As GatherKernels::convert64 and convert32.
template <typename In, typename Out>
void convert(const void* in, std::int64_t n, const double* scale, const double* shift,
             std::int64_t period, const void* fill, void* out) {
    const In* const from = static_cast<const In*>(in);
    Out* const to = static_cast<Out*>(out);
    if (fill == nullptr) {
        convert_all<Nan::kept>(from, n, scale, shift, period, 0.0, to, nullptr);
    } else {
        Out value;
        __builtin_memcpy(&value, fill, sizeof(Out));
        convert_all<Nan::filled>(from, n, scale, shift, period, widen_one(value), to, nullptr);
    }
}

/// As GatherKernels::convert_and_find_nan.
inline bool convert_and_find_nan(const double* in, std::int64_t n, const double* scale,
                                 const double* shift, std::int64_t period, float fill, float* out,
                                 std::uint8_t* present) {
    return !convert_all<Nan::marked>(in, n, scale, shift, period, widen_one(fill), out, present);
}

}  // namespace windeck::WINDECK_ISA
