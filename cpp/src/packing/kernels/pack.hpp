// The loops of packing: conversion of tokens and counting.
// Compiled once for each instruction set; pack_kernels() chooses. All give the same results.
//
// Inputs may have any alignment; outputs are aligned to their type.

#pragma once

#include <cstddef>
#include <cstdint>

#include "windeck/base/dtype.hpp"

namespace windeck {

struct PackKernels {
    using Count = std::int64_t;

    /// Widths of integers in a batch: int64 [0] and int32 [1].
    static constexpr std::size_t width_count = 2;

    /// From each integer type (by DType) to each width. Returns whether all values
    /// fit; where one does not, what was written is unspecified.
    bool (*copy[dtype_count][width_count])(const void* in, Count n, void* out);

    /// out[i] = i.
    void (*count[width_count])(Count n, void* out);
};

/// The kernels of the level in use.
const PackKernels& pack_kernels();

namespace baseline {
extern const PackKernels pack_kernels;
}
namespace avx2 {
extern const PackKernels pack_kernels;
}
namespace avx512 {
extern const PackKernels pack_kernels;
}

}  // namespace windeck
