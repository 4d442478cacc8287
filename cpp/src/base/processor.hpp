// The instruction sets of an x86-64 processor, as far as the operating system saves their
// registers.
//
// __builtin_cpu_supports would say the same, but takes the answer from the compiler's runtime
// library, and that of Zig, which builds wheels, answers no to everything.

#pragma once

#include <cpuid.h>

#include <cstdint>

namespace windeck {

struct Processor {
    bool sse42 = false;
    bool avx2 = false;    // with bmi, bmi2, lzcnt, popcnt and f16c
    bool avx512 = false;  // f, dq, bw, vl and cd, with all of avx2
};

/// Asks the processor. A few hundred cycles.
inline Processor processor() {
    const auto all = [](unsigned word, std::uint32_t bits) { return (word & bits) == bits; };
    const auto bit = [](unsigned number) { return std::uint32_t{1} << number; };
    Processor found;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
    found.sse42 = all(c, bit(20));
    const bool popcnt_f16c_avx = all(c, bit(23) | bit(27) | bit(28) | bit(29));  // 27: xgetbv
    if (!popcnt_f16c_avx) return found;
    unsigned saved = 0, high = 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    unsigned lzcnt = 0, features = 0;
    if (!__get_cpuid(0x80000001U, &a, &b, &lzcnt, &d)) return found;
    if (!__get_cpuid_count(7, 0, &a, &features, &c, &d)) return found;
    found.avx2 = all(saved, 0x6) && all(lzcnt, bit(5)) && all(features, bit(3) | bit(5) | bit(8));
    found.avx512 = found.avx2 && all(saved, 0xe6) &&
                   all(features, bit(16) | bit(17) | bit(28) | bit(30) | bit(31));
    return found;
}

}  // namespace windeck
