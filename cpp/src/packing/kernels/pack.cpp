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
constexpr void add(PackKernels& kernels, DType dtype) {
    kernels.copy[code(dtype)][0] = copy<In, std::int64_t>;
    kernels.copy[code(dtype)][1] = copy<In, std::int32_t>;
}

constexpr PackKernels make_kernels() {
    PackKernels kernels{.copy = {}, .count = {count<std::int64_t>, count<std::int32_t>}};
    add<std::int8_t>(kernels, DType::int8);
    add<std::int16_t>(kernels, DType::int16);
    add<std::int32_t>(kernels, DType::int32);
    add<std::int64_t>(kernels, DType::int64);
    add<std::uint8_t>(kernels, DType::uint8);
    add<std::uint16_t>(kernels, DType::uint16);
    add<std::uint32_t>(kernels, DType::uint32);
    add<std::uint64_t>(kernels, DType::uint64);
    return kernels;
}

}  // namespace

constinit const PackKernels pack_kernels = make_kernels();

}  // namespace windeck::WINDECK_ISA
