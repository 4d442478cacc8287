// The instruction set of the kernels.
//
// Kernels (cpp/src/*/kernels) are compiled once for each level, in a namespace of its name. The
// level is chosen once, at first use: that of the environment variable WINDECK_SIMD (baseline,
// avx2, avx512) if it is set, else the best one of the processor. An unknown name and a level that
// the processor lacks are errors. All levels give the same bits. Thread-safe.

#pragma once

#include <string_view>

namespace windeck {

enum class Simd { baseline, avx2, avx512 };

/// The level in use. Throws std::invalid_argument for an invalid or unsupported WINDECK_SIMD.
Simd simd();

/// "baseline", "avx2" or "avx512".
std::string_view name(Simd level);

}  // namespace windeck
