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

template <typename...>
struct Types {};

/// In the order of DType, and of sizes.
using Floats = Types<double, float, Float16, BFloat16>;
using Integers = Types<std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t,
                       std::uint16_t, std::uint32_t, std::uint64_t, Bool>;
using Unsigned = Types<std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t>;

/// For types that a loop does not take.
template <typename>
constexpr decltype(nullptr) none = nullptr;

template <typename... F, typename... I, typename... U>
constexpr GatherKernels tables_of(Types<F...> /*floats*/, Types<I...> /*integers*/,
                                  Types<U...> /*sizes*/) {
    static_assert(sizeof...(F) == float_count && sizeof...(U) == size_count);
    static_assert(sizeof...(F) + sizeof...(I) == dtype_count);
    return {
        .copy = copy,
        .pack = {pack<U>...},
        .find_nan = {find_nan<F>...},
        .count_nan = {count_nan<F>...},
        .copy_or_fill = {copy_or_fill<F>...},
        .apply_bits = apply_bits,
        .patch = {patch<U>...},
        .interleave = {interleave<U>...},
        .convert64 = {convert<double, F>...},
        .convert32 = {convert<float, F>...},
        .convert_and_find_nan = convert_and_find_nan,
        .widen = {widen<F>..., widen<I>...},
        .widen_odd_signed = widen_odd_signed,
        .widen_odd_unsigned = widen_odd_unsigned,
        .round = {none<F>..., round<I>...},
        .widen_integer = {none<F>..., widen_integer<I>...},
        .narrow_integer = {none<F>..., narrow_integer<I>...},
    };
}

}  // namespace

extern constinit const GatherKernels gather_kernels = tables_of(Floats(), Integers(), Unsigned());

}  // namespace windeck::WINDECK_ISA
