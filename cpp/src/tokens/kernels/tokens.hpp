// The loops of packing: copies of tokens that change their type, counting, and finding zeros.
// Compiled once for each instruction set; token_kernels() chooses. All give the same results.
//
// Inputs may have any alignment; outputs are aligned to their type.

#pragma once

#include <cstddef>
#include <cstdint>

namespace windeck {

struct TokenKernels {
    using Count = std::int64_t;

    /// From each integer type (by DType) to int64 [0] and int32 [1]. Returns whether all values
    /// fit; where one does not, what was written is unspecified.
    bool (*copy[13][2])(const void* in, Count n, void* out);

    /// out[i] = i, as int64 [0] and int32 [1].
    void (*count[2])(Count n, void* out);

    /// Writes `first` + i for every i with in[i] == 0 and returns their number; `out` has room for
    /// n.
    Count (*zeros[2])(const void* in, Count n, std::int32_t first, std::int32_t* out);
};

/// The kernels of the level in force.
const TokenKernels& token_kernels();

namespace baseline {
extern const TokenKernels token_kernels;
}
namespace avx2 {
extern const TokenKernels token_kernels;
}
namespace avx512 {
extern const TokenKernels token_kernels;
}

}  // namespace windeck
