#include "windeck/base/dispatch.hpp"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace windeck {
namespace {

Simd best() {
#ifdef WINDECK_X86
    // Exactly the features CMakeLists.txt compiles each level with.
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi") ||
        !__builtin_cpu_supports("bmi2") || !__builtin_cpu_supports("popcnt") ||
        !__builtin_cpu_supports("f16c") || !__builtin_cpu_supports("lzcnt"))
        return Simd::baseline;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512cd"))
        return Simd::avx2;
    return Simd::avx512;
#else
    return Simd::baseline;
#endif
}

Simd chosen() {
    const char* const requested = std::getenv("WINDECK_SIMD");
    if (requested == nullptr || *requested == '\0') return best();
    for (const Simd level : {Simd::baseline, Simd::avx2, Simd::avx512}) {
        if (name(level) != requested) continue;
        if (level <= best()) return level;
        throw std::invalid_argument("WINDECK_SIMD is '" + std::string(requested) +
                                    "', which this processor lacks; it has '" +
                                    std::string(name(best())) + "'");
    }
    throw std::invalid_argument("WINDECK_SIMD is '" + std::string(requested) +
                                "', expected baseline, avx2 or avx512");
}

}  // namespace

Simd simd() {
    static const Simd level = chosen();
    return level;
}

std::string_view name(Simd level) {
    switch (level) {
        case Simd::avx512:
            return "avx512";
        case Simd::avx2:
            return "avx2";
        default:
            return "baseline";
    }
}

}  // namespace windeck
