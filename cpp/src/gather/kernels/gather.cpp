#include "gather/kernels/gather.hpp"

#include "gather/kernels/cast.hpp"
#include "gather/kernels/copy_or_fill.hpp"
#include "gather/kernels/move.hpp"
#include "gather/kernels/nan.hpp"
#include "gather/kernels/scaling.hpp"

namespace windeck::WINDECK_ISA {
namespace {

using Count = std::int64_t;

template <typename T>
bool find_nan(const void* in, Count n, std::uint8_t* __restrict present) {
    const T* const from = static_cast<const T*>(in);
    unsigned found = 0;
    Count i = 0;
    for (; i + 8 <= n; i += 8) {
        const unsigned bits = nan_bits(from + i);
        const std::uint64_t is_present = bytes_of(bits ^ 0xffU);
        __builtin_memcpy(present + i, &is_present, 8);
        found |= bits;
    }
    for (; i < n; ++i) {
        present[i] = is_nan(from[i]) ? 0 : 1;
        found |= present[i] ^ 1U;
    }
    return found != 0;
}

template <typename T>
Count count_nan(const void* in, Count n) {
    const T* const from = static_cast<const T*>(in);
    unsigned found = 0;
    for (Count i = 0; i < n; ++i)
        found += is_nan(from[i]) ? 1U : 0U;
    return found;
}

bool apply_bits(const std::uint8_t* bits, Count first, Count step, Count n, std::uint8_t* present) {
    std::uint8_t all = 1;
    for (Count i = 0; i < n; ++i) {
        const Count bit = first + i * step;
        const auto is_present = static_cast<std::uint8_t>(bits[bit >> 3] >> (bit & 7) & 1);
        present[i] &= is_present;
        all &= is_present;
    }
    return all == 0;
}

template <typename In>
void widen(const void* in, Count n, double* __restrict out) {
    const In* __restrict const from = static_cast<const In*>(in);
    for (Count i = 0; i < n; ++i)
        out[i] = widen_one(from[i]);
}

void widen_odd_signed(const void* in, Count n, double* out) {
    const auto* const from = static_cast<const std::int64_t*>(in);
    for (Count i = 0; i < n; ++i) {
        const auto bits = static_cast<std::uint64_t>(from[i]);
        out[i] = from[i] < 0 ? -widen_to_odd(0 - bits) : widen_to_odd(bits);
    }
}

void widen_odd_unsigned(const void* in, Count n, double* out) {
    const auto* const from = static_cast<const std::uint64_t*>(in);
    for (Count i = 0; i < n; ++i)
        out[i] = widen_to_odd(from[i]);
}

template <typename Out>
Count round(const double* in, Count n, void* out) {
    Out* const to = static_cast<Out*>(out);
    for (Count i = 0; i < n; ++i) {
        const double value = __builtin_rint(in[i]);
        if (!(value >= static_cast<double>(Range<Out>::low) && value < Range<Out>::above)) {
            return i;
        }
        const bool negative = value < 0;
        to[i] = Range<Out>::make(negative ? static_cast<std::uint64_t>(static_cast<Count>(value))
                                          : static_cast<std::uint64_t>(value));
    }
    return n;
}

template <typename In>
void widen_integer(const void* in, Count n, std::int64_t* __restrict out) {
    const In* __restrict const from = static_cast<const In*>(in);
    for (Count i = 0; i < n; ++i)
        out[i] = integer_of(from[i]);
}

template <typename Out>
Count narrow_integer(const std::int64_t* in, bool is_unsigned, Count n, void* out) {
    Out* const to = static_cast<Out*>(out);
    for (Count i = 0; i < n; ++i) {
        const bool negative = !is_unsigned && in[i] < 0;
        const auto bits = static_cast<std::uint64_t>(in[i]);
        if (negative ? in[i] < Range<Out>::low : bits > Range<Out>::high) return i;
        to[i] = Range<Out>::make(bits);
    }
    return n;
}

using std::int16_t, std::int32_t, std::int64_t, std::int8_t;
using std::uint16_t, std::uint32_t, std::uint64_t, std::uint8_t;

}  // namespace

extern const GatherKernels gather_kernels = {
    .pack = {pack<uint8_t>, pack<uint16_t>, pack<uint32_t>, pack<uint64_t>},
    .find_nan = {find_nan<double>, find_nan<float>, find_nan<Float16>, find_nan<BFloat16>},
    .count_nan = {count_nan<double>, count_nan<float>, count_nan<Float16>, count_nan<BFloat16>},
    .copy_or_fill = {copy_or_fill<double>, copy_or_fill<float>, copy_or_fill<Float16>,
                     copy_or_fill<BFloat16>},
    .apply_bits = apply_bits,
    .patch = {patch<uint8_t>, patch<uint16_t>, patch<uint32_t>, patch<uint64_t>},
    .interleave = {interleave<uint8_t>, interleave<uint16_t>, interleave<uint32_t>,
                   interleave<uint64_t>},
    .convert64 = {convert<double, double>, convert<double, float>, convert<double, Float16>,
                  convert<double, BFloat16>},
    .convert32 = {convert<float, double>, convert<float, float>, convert<float, Float16>,
                  convert<float, BFloat16>},
    .convert_and_find_nan = convert_and_find_nan,
    .widen = {widen<double>, widen<float>, widen<Float16>, widen<BFloat16>, widen<int8_t>,
              widen<int16_t>, widen<int32_t>, widen<int64_t>, widen<uint8_t>, widen<uint16_t>,
              widen<uint32_t>, widen<uint64_t>, widen<Bool>},
    .widen_odd_signed = widen_odd_signed,
    .widen_odd_unsigned = widen_odd_unsigned,
    .round = {nullptr, nullptr, nullptr, nullptr, round<int8_t>, round<int16_t>, round<int32_t>,
              round<int64_t>, round<uint8_t>, round<uint16_t>, round<uint32_t>, round<uint64_t>,
              round<Bool>},
    .widen_integer = {nullptr, nullptr, nullptr, nullptr, widen_integer<int8_t>,
                      widen_integer<int16_t>, widen_integer<int32_t>, widen_integer<int64_t>,
                      widen_integer<uint8_t>, widen_integer<uint16_t>, widen_integer<uint32_t>,
                      widen_integer<uint64_t>, widen_integer<Bool>},
    .narrow_integer = {nullptr, nullptr, nullptr, nullptr, narrow_integer<int8_t>,
                       narrow_integer<int16_t>, narrow_integer<int32_t>, narrow_integer<int64_t>,
                       narrow_integer<uint8_t>, narrow_integer<uint16_t>, narrow_integer<uint32_t>,
                       narrow_integer<uint64_t>, narrow_integer<Bool>},
};

}  // namespace windeck::WINDECK_ISA
