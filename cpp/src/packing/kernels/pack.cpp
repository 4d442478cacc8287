#include "packing/kernels/pack.hpp"

namespace windeck::WINDECK_ISA {
namespace {

using Count = PackKernels::Count;

/// Values are loaded one by one as bytes, which compilers turn into unaligned vector loads.
template <typename T>
inline T load(const unsigned char* from) {
    T value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
}

/// Bits that are not 0 when `value` cannot be held by Out. No branch: the loop stays vector code.
template <typename In, typename Out>
inline std::uint64_t misfit(In value) {
    constexpr bool from_signed = In(-1) < In(0);
    if constexpr (from_signed && sizeof(In) > sizeof(Out)) {
        return static_cast<std::uint64_t>(static_cast<In>(static_cast<Out>(value)) ^ value);
    } else if constexpr (!from_signed && sizeof(In) >= sizeof(Out)) {
        return static_cast<std::uint64_t>(value) >> (8 * sizeof(Out) - 1);
    } else {
        return 0;
    }
}

template <typename In, typename Out>
bool copy(const void* in, Count n, void* out) {
    const auto* __restrict const from = static_cast<const unsigned char*>(in);
    auto* __restrict const to = static_cast<Out*>(out);
    std::uint64_t wrong = 0;
    for (Count i = 0; i < n; ++i) {
        const In value = load<In>(from + i * static_cast<Count>(sizeof(In)));
        to[i] = static_cast<Out>(value);
        wrong |= misfit<In, Out>(value);
    }
    return wrong == 0;
}

template <typename Out>
void count(Count n, void* out) {
    auto* const to = static_cast<Out*>(out);
    for (Count i = 0; i < n; ++i)
        to[i] = static_cast<Out>(i);
}

template <typename In>
bool any_zero(const In* from, Count begin, Count end) {
    In any = 0;
    for (Count i = begin; i < end; ++i)
        any |= from[i] == 0 ? In(1) : In(0);
    return any != 0;
}

/// Stretches without a zero, which nearly all are, are passed over at the speed of vector code:
/// long ones first, and short ones within those that have some.
template <typename In>
Count zeros(const void* in, Count n, std::int32_t first, std::int32_t* out) {
    constexpr Count far = 256;
    constexpr Count near = 32;
    const auto* const from = static_cast<const In*>(in);
    Count found = 0;
    for (Count begin = 0; begin < n; begin += near) {
        if (begin % far == 0 && n - begin >= far && !any_zero(from, begin, begin + far)) {
            begin += far - near;
            continue;
        }
        const Count end = n - begin < near ? n : begin + near;
        if (!any_zero(from, begin, end)) continue;
        for (Count i = begin; i < end; ++i) {
            if (from[i] == 0) out[found++] = first + static_cast<std::int32_t>(i);
        }
    }
    return found;
}

}  // namespace

// clang-format off
const PackKernels pack_kernels = {
    .copy = {
        {nullptr, nullptr}, {nullptr, nullptr}, {nullptr, nullptr}, {nullptr, nullptr},
        {copy<std::int8_t, std::int64_t>, copy<std::int8_t, std::int32_t>},
        {copy<std::int16_t, std::int64_t>, copy<std::int16_t, std::int32_t>},
        {copy<std::int32_t, std::int64_t>, copy<std::int32_t, std::int32_t>},
        {copy<std::int64_t, std::int64_t>, copy<std::int64_t, std::int32_t>},
        {copy<std::uint8_t, std::int64_t>, copy<std::uint8_t, std::int32_t>},
        {copy<std::uint16_t, std::int64_t>, copy<std::uint16_t, std::int32_t>},
        {copy<std::uint32_t, std::int64_t>, copy<std::uint32_t, std::int32_t>},
        {copy<std::uint64_t, std::int64_t>, copy<std::uint64_t, std::int32_t>},
        {nullptr, nullptr},
    },
    .count = {count<std::int64_t>, count<std::int32_t>},
    .zeros = {zeros<std::int64_t>, zeros<std::int32_t>},
};
// clang-format on

}  // namespace windeck::WINDECK_ISA
