// The loops of the gather, on blocks that fit the first-level cache. Compiled once for each
// instruction set; gather_kernels() chooses. All give the same bits: conversions are integer
// arithmetic or single IEEE operations, without contraction.
//
// Pointers are contiguous and aligned to their type unless a stride is named; nothing overlaps.
// Presence is a byte per value, 1 or 0. Tables are indexed by DType, or by the log2 of a size.

#pragma once

#include <cstddef>
#include <cstdint>

#include "windeck/base/dtype.hpp"

namespace windeck {

struct GatherKernels {
    using Count = std::int64_t;

    /// Copies bytes of any alignment.
    void (*copy)(const void* in, Count bytes, void* out);

    /// Values `stride` bytes apart, of any alignment, to contiguous ones.
    void (*pack[size_count])(const void* in, Count stride, Count n, void* out);

    /// Writes presence: 0 for NaN, else 1. Returns whether there is a 0.
    bool (*find_nan[float_count])(const void* in, Count n, std::uint8_t* present);

    /// The number of NaN; n < 2^31.
    Count (*count_nan[float_count])(const void* in, Count n);

    /// Copies values, *fill where NaN was, and writes presence unless it is null. `in` may be
    /// `out`. Returns whether there is a NaN.
    bool (*copy_or_fill[float_count])(const void* in, Count n, const void* fill, void* out,
                                      std::uint8_t* present);

    /// Clears presence where bit first + i * step is 0. Returns whether there is such a bit.
    bool (*apply_bits)(const std::uint8_t* bits, Count first, Count step, Count n,
                       std::uint8_t* present);

    /// Writes *fill where presence is 0.
    void (*patch[size_count])(const std::uint8_t* present, Count n, const void* fill, void* out);

    /// out[i * out_stride + c] = in[c * in_stride + i] for c < columns, i < n; strides in values.
    void (*interleave[size_count])(const void* in, Count in_stride, Count columns, Count n,
                                   void* out, Count out_stride);

    /// Floating, from float64 and float32: out[i] = in[i] * scale[i % period] + shift[i % period];
    /// period 0 does not scale. Where in[i] is NaN: *fill, unless fill is null.
    using Convert = void (*)(const void* in, Count n, const double* scale, const double* shift,
                             Count period, const void* fill, void* out);
    Convert convert64[float_count];
    Convert convert32[float_count];

    /// Both in one pass for the most common pair, float64 to float32. Returns whether there is
    /// a NaN.
    bool (*convert_and_find_nan)(const double* in, Count n, const double* scale,
                                 const double* shift, Count period, float fill, float* out,
                                 std::uint8_t* present);

    /// To float64, to nearest.
    void (*widen[dtype_count])(const void* in, Count n, double* out);
    /// int64 and uint64 to float64, inexact results with an odd last bit: rounding those again to a
    /// narrower type is rounding once (Boldo and Melquiond 2008).
    void (*widen_odd_signed)(const void* in, Count n, double* out);
    void (*widen_odd_unsigned)(const void* in, Count n, double* out);

    /// float64 to integers, half to even; returns the first i that does not fit, or n.
    Count (*round[dtype_count])(const double* in, Count n, void* out);

    /// Integers by way of 64 bits; the second returns the first i that does not fit, or n.
    void (*widen_integer[dtype_count])(const void* in, Count n, std::int64_t* out);
    Count (*narrow_integer[dtype_count])(const std::int64_t* in, bool is_unsigned, Count n,
                                         void* out);
};

/// The kernels of the level in use.
const GatherKernels& gather_kernels();

namespace baseline {
extern const GatherKernels gather_kernels;
}
namespace avx2 {
extern const GatherKernels gather_kernels;
}
namespace avx512 {
extern const GatherKernels gather_kernels;
}

}  // namespace windeck
