// Registers of unsigned lanes for the permutation's rounds, one set for each instruction set.
//
// Lanes32 and Lanes64 have the same static members, so the kernel is written once:
//     width                        lanes in a register
//     all(v)                       v in every lane
//     load(p), store(p, x)         `width` values, unaligned
//     count_from(v)                v, v + 1, v + 2, ...
//     plus, times, clear(x, mask)  modulo the lane's width; x & mask
//     fold(x, shift, low)          x ^ ((x >> shift) & low)
//     at_least(x, limit)           bit i: lane i >= limit
//     chains                       registers to work on at once: as one round waits for the other,
//                                  independent ones in between keep the processor busy
//     keep(values, places, mask, to)   appends those of `width` values, and their places, whose
//                                  bit is set; `to` needs space for `width` of them

#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
// GCC's own AVX-512 headers trip over this one (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#endif

namespace windeck::WINDECK_ISA {

/// Where values are appended that are to be walked on, with their places in the output.
template <typename Lane>
struct Appended {
    Lane* value;
    std::uint32_t* place;
};

/// Without branches: each one is written, and only those that count are kept.
template <unsigned width, typename Lane>
inline void keep_one_by_one(const Lane* values, const std::uint32_t* places, std::uint32_t mask,
                            Appended<Lane>& to) {
    for (unsigned i = 0; i < width; ++i) {
        *to.value = values[i];
        *to.place = places[i];
        to.value += (mask >> i) & 1;
        to.place += (mask >> i) & 1;
    }
}

#if defined(__AVX512F__)

struct Lanes32 {
    using Lane = std::uint32_t;
    using Register = __m512i;
    using Shift = __m128i;
    static constexpr unsigned width = 16;
    static constexpr unsigned chains = 4;

    static Register all(Lane v) { return _mm512_set1_epi32(static_cast<int>(v)); }
    static Register load(const Lane* p) { return _mm512_loadu_si512(p); }
    static void store(Lane* p, Register x) { _mm512_storeu_si512(p, x); }
    static Register count_from(Lane v) {
        return plus(all(v),
                    _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    }
    static Register plus(Register x, Register y) { return _mm512_add_epi32(x, y); }
    static Register times(Register x, Register y) { return _mm512_mullo_epi32(x, y); }
    static Register clear(Register x, Register mask) { return _mm512_and_si512(x, mask); }
    static Register fold(Register x, Shift shift, Register low) {
        return _mm512_ternarylogic_epi32(x, _mm512_srl_epi32(x, shift), low, 0x78);
    }
    static std::uint32_t at_least(Register x, Register limit) {
        return _mm512_cmpge_epu32_mask(x, limit);
    }
    static void keep(const Lane* values, const std::uint32_t* places, std::uint32_t mask,
                     Appended<Lane>& to) {
        const auto kept = static_cast<__mmask16>(mask);
        _mm512_storeu_si512(to.value, _mm512_maskz_compress_epi32(kept, load(values)));
        _mm512_storeu_si512(to.place, _mm512_maskz_compress_epi32(kept, load(places)));
        to.value += _mm_popcnt_u32(mask);
        to.place += _mm_popcnt_u32(mask);
    }
};

struct Lanes64 {
    using Lane = std::uint64_t;
    using Register = __m512i;
    using Shift = __m128i;
    static constexpr unsigned width = 8;
    static constexpr unsigned chains = 4;

    static Register all(Lane v) { return _mm512_set1_epi64(static_cast<long long>(v)); }
    static Register load(const Lane* p) { return _mm512_loadu_si512(p); }
    static void store(Lane* p, Register x) { _mm512_storeu_si512(p, x); }
    static Register count_from(Lane v) {
        return plus(all(v), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
    }
    static Register plus(Register x, Register y) { return _mm512_add_epi64(x, y); }
    static Register times(Register x, Register y) { return _mm512_mullo_epi64(x, y); }
    static Register clear(Register x, Register mask) { return _mm512_and_si512(x, mask); }
    static Register fold(Register x, Shift shift, Register low) {
        return _mm512_ternarylogic_epi64(x, _mm512_srl_epi64(x, shift), low, 0x78);
    }
    static std::uint32_t at_least(Register x, Register limit) {
        return _mm512_cmpge_epu64_mask(x, limit);
    }
    static void keep(const Lane* values, const std::uint32_t* places, std::uint32_t mask,
                     Appended<Lane>& to) {
        const auto kept = static_cast<__mmask8>(mask);
        const __m256i from = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(places));
        _mm512_storeu_si512(to.value, _mm512_maskz_compress_epi64(kept, load(values)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.place),
                            _mm256_maskz_compress_epi32(kept, from));
        to.value += _mm_popcnt_u32(mask);
        to.place += _mm_popcnt_u32(mask);
    }
};

#elif defined(__AVX2__)

/// For each mask of 8 bits: which bits are set, in ascending order, one a byte.
struct SetBits {
    alignas(64) std::uint64_t lanes[256];
    std::uint8_t twice[16];  // a mask of 4 bits, each bit twice

    constexpr SetBits() : lanes{}, twice{} {
        for (unsigned mask = 0; mask < 256; ++mask) {
            unsigned found = 0;
            for (unsigned i = 0; i < 8; ++i) {
                if ((mask >> i) & 1) lanes[mask] |= std::uint64_t{i} << (8 * found++);
                if (mask < 16 && ((mask >> (i / 2)) & 1)) {
                    twice[mask] = static_cast<std::uint8_t>(twice[mask] | (1U << i));
                }
            }
        }
    }
};

constexpr SetBits set_bits;

struct Lanes32 {
    using Lane = std::uint32_t;
    using Register = __m256i;
    using Shift = __m128i;
    static constexpr unsigned width = 8;
    static constexpr unsigned chains = 4;

    static Register all(Lane v) { return _mm256_set1_epi32(static_cast<int>(v)); }
    static Register load(const Lane* p) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    }
    static void store(Lane* p, Register x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
    }
    static Register count_from(Lane v) {
        return plus(all(v), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }
    static Register plus(Register x, Register y) { return _mm256_add_epi32(x, y); }
    static Register times(Register x, Register y) { return _mm256_mullo_epi32(x, y); }
    static Register clear(Register x, Register mask) { return _mm256_and_si256(x, mask); }
    static Register fold(Register x, Shift shift, Register low) {
        return _mm256_xor_si256(x, _mm256_and_si256(_mm256_srl_epi32(x, shift), low));
    }
    static std::uint32_t at_least(Register x, Register limit) {
        const Register larger = _mm256_cmpeq_epi32(_mm256_max_epu32(x, limit), x);
        return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(larger)));
    }
    static void keep(const Lane* values, const std::uint32_t* places, std::uint32_t mask,
                     Appended<Lane>& to) {
        const __m256i lanes =
            _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(set_bits.lanes[mask])));
        store(to.value, _mm256_permutevar8x32_epi32(load(values), lanes));
        store(to.place, _mm256_permutevar8x32_epi32(load(places), lanes));
        to.value += _mm_popcnt_u32(mask);
        to.place += _mm_popcnt_u32(mask);
    }
};

struct Lanes64 {
    using Lane = std::uint64_t;
    using Register = __m256i;
    using Shift = __m128i;
    static constexpr unsigned width = 4;
    static constexpr unsigned chains = 4;

    static Register all(Lane v) { return _mm256_set1_epi64x(static_cast<long long>(v)); }
    static Register load(const Lane* p) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    }
    static void store(Lane* p, Register x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
    }
    static Register count_from(Lane v) { return plus(all(v), _mm256_setr_epi64x(0, 1, 2, 3)); }
    static Register plus(Register x, Register y) { return _mm256_add_epi64(x, y); }
    static Register times(Register x, Register y) {
        const Register cross = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(x, 32), y),
                                                _mm256_mul_epu32(x, _mm256_srli_epi64(y, 32)));
        return _mm256_add_epi64(_mm256_mul_epu32(x, y), _mm256_slli_epi64(cross, 32));
    }
    static Register clear(Register x, Register mask) { return _mm256_and_si256(x, mask); }
    static Register fold(Register x, Shift shift, Register low) {
        return _mm256_xor_si256(x, _mm256_and_si256(_mm256_srl_epi64(x, shift), low));
    }
    static std::uint32_t at_least(Register x, Register limit) {
        // Values and limits are below 2^63: signed comparison will do.
        const Register smaller = _mm256_cmpgt_epi64(limit, x);
        return ~static_cast<std::uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(smaller))) & 15;
    }
    static void keep(const Lane* values, const std::uint32_t* places, std::uint32_t mask,
                     Appended<Lane>& to) {
        const __m256i pairs = _mm256_cvtepu8_epi32(
            _mm_cvtsi64_si128(static_cast<long long>(set_bits.lanes[set_bits.twice[mask]])));
        const __m128i lanes =
            _mm_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(set_bits.lanes[mask])));
        const auto* const from = reinterpret_cast<const float*>(places);
        store(to.value, _mm256_permutevar8x32_epi32(load(values), pairs));
        _mm_storeu_ps(reinterpret_cast<float*>(to.place),
                      _mm_permutevar_ps(_mm_loadu_ps(from), lanes));
        to.value += _mm_popcnt_u32(mask);
        to.place += _mm_popcnt_u32(mask);
    }
};

#else

#if defined(__SSE2__)

/// SSE2 multiplies the lower halves of two 64-bit lanes. Four values therefore lie in two
/// registers, each in the lower half of its lane; what the upper halves hold does not matter:
/// products do not see it, and folding takes bits below 32 only.
struct Lanes32 {
    using Lane = std::uint32_t;
    struct Register {
        __m128i even, odd;
    };
    using Shift = __m128i;
    static constexpr unsigned width = 4;
    static constexpr unsigned chains = 3;

    static Register all(Lane v) {
        const __m128i x = _mm_set1_epi64x(static_cast<long long>(v));
        return {x, x};
    }
    static Register load(const Lane* p) {
        const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return {x, _mm_srli_epi64(x, 32)};
    }
    static void store(Lane* p, Register x) {
        // The values have no bits above the lower halves by now: see clear.
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                         _mm_or_si128(x.even, _mm_slli_epi64(x.odd, 32)));
    }
    static Register count_from(Lane v) {
        return plus(all(v), {_mm_set_epi64x(2, 0), _mm_set_epi64x(3, 1)});
    }
    static Register plus(Register x, Register y) {
        return {_mm_add_epi64(x.even, y.even), _mm_add_epi64(x.odd, y.odd)};
    }
    static Register times(Register x, Register y) {
        return {_mm_mul_epu32(x.even, y.even), _mm_mul_epu32(x.odd, y.odd)};
    }
    static Register clear(Register x, Register mask) {
        return {_mm_and_si128(x.even, mask.even), _mm_and_si128(x.odd, mask.odd)};
    }
    static Register fold(Register x, Shift shift, Register low) {
        return {_mm_xor_si128(x.even, _mm_and_si128(_mm_srl_epi64(x.even, shift), low.even)),
                _mm_xor_si128(x.odd, _mm_and_si128(_mm_srl_epi64(x.odd, shift), low.odd))};
    }
    static std::uint32_t at_least(Register x, Register limit) {
        // Below 2^32 in 64-bit lanes: the difference's sign is that of the comparison.
        const __m128i even = _mm_sub_epi64(x.even, limit.even);
        const __m128i odd = _mm_sub_epi64(x.odd, limit.odd);
        const __m128 signs =
            _mm_shuffle_ps(_mm_castsi128_ps(even), _mm_castsi128_ps(odd), _MM_SHUFFLE(3, 1, 3, 1));
        const auto below = static_cast<std::uint32_t>(_mm_movemask_ps(signs));
        // In the order even 0, even 1, odd 0, odd 1.
        const std::uint32_t mask = ~below & 15;
        return (mask & 9) | ((mask & 2) << 1) | ((mask & 4) >> 1);
    }
    static void keep(const Lane* values, const std::uint32_t* places, std::uint32_t mask,
                     Appended<Lane>& to) {
        keep_one_by_one<width>(values, places, mask, to);
    }
};

#endif

/// Plain C++: a register of one lane.
template <typename Unsigned>
struct OneLane {
    using Lane = Unsigned;
    using Register = Unsigned;
    using Shift = unsigned;
    static constexpr unsigned width = 1;
    static constexpr unsigned chains = 4;

    static Register all(Lane v) { return v; }
    static Register load(const Lane* p) { return *p; }
    static void store(Lane* p, Register x) { *p = x; }
    static Register count_from(Lane v) { return v; }
    static Register plus(Register x, Register y) { return x + y; }
    static Register times(Register x, Register y) { return x * y; }
    static Register clear(Register x, Register mask) { return x & mask; }
    static Register fold(Register x, Shift shift, Register low) { return x ^ ((x >> shift) & low); }
    static std::uint32_t at_least(Register x, Register limit) { return x >= limit; }
    static void keep(const Lane* values, const std::uint32_t* places, std::uint32_t mask,
                     Appended<Lane>& to) {
        keep_one_by_one<width>(values, places, mask, to);
    }
};

#if !defined(__SSE2__)
using Lanes32 = OneLane<std::uint32_t>;
#endif
using Lanes64 = OneLane<std::uint64_t>;

#endif

#if defined(__SSE2__)
inline __m128i shift_by(unsigned count, __m128i) {
    return _mm_cvtsi32_si128(static_cast<int>(count));
}
#endif
inline unsigned shift_by(unsigned count, unsigned) {
    return count;
}

}  // namespace windeck::WINDECK_ISA
