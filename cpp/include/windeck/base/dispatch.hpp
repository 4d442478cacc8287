// Which instruction set the kernels run with.
//
// Kernels (cpp/src/kernels) are compiled once for each level, in a namespace of its name. The
// level is found once, at first use: the best one the processor has, lowered by the environment
// variable WINDECK_SIMD (baseline, avx2, avx512) when that is set. A name that is unknown or a
// level the processor lacks is an error, not a silent change. Every level gives the same bits.
// Thread-safe.

#pragma once

#include <string_view>

namespace windeck {

enum class Simd { baseline, avx2, avx512 };

/// The level in force. Throws std::invalid_argument when WINDECK_SIMD cannot be honoured.
Simd simd();

/// "baseline", "avx2" or "avx512".
std::string_view name(Simd level);

}  // namespace windeck
