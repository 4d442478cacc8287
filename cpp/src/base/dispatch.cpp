#include "windeck/base/dispatch.hpp"

#include <cstdlib>
#include <stdexcept>
#include <string>

#ifdef WINDECK_X86
#include "base/processor.hpp"
#endif

namespace windeck {
namespace {

Simd best() {
#ifdef WINDECK_X86
    // Exactly the features CMakeLists.txt compiles each level with.
    const Processor found = processor();
    if (found.avx512) return Simd::avx512;
    return found.avx2 ? Simd::avx2 : Simd::baseline;
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
