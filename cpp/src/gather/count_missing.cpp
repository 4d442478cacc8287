// Missing values of a column counted, in blocks that stay in the first-level cache.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gather/kernels/gather.hpp"
#include "windeck/gather/gather.hpp"

namespace windeck {

std::int64_t count_missing(const Column& column) {
    constexpr std::int64_t block = 2048;
    alignas(64) std::byte packed[block * 8];
    alignas(64) std::uint8_t present[block];
    const GatherKernels& kernels = gather_kernels();
    const std::int64_t size = size_of(column.dtype);
    const bool may_be_nan = is_float(column.dtype) && column.nan_is_missing;
    const bool in_place =
        column.stride == size &&
        reinterpret_cast<std::uintptr_t>(column.data) % static_cast<std::uintptr_t>(size) == 0;
    if (!may_be_nan && column.validity == nullptr) return 0;
    std::int64_t missing = 0;
    for (std::int64_t row = 0; row < column.rows; row += block) {
        const std::int64_t n = std::min(block, column.rows - row);
        const std::byte* values = column.data + row * column.stride;
        if (may_be_nan && !in_place) {
            kernels.pack[log2_size(column.dtype)](values, column.stride, n, packed);
            values = packed;
        }
        if (column.validity == nullptr) {
            missing += kernels.count_nan[code(column.dtype)](values, n);
            continue;
        }
        if (may_be_nan) {
            kernels.find_nan[code(column.dtype)](values, n, present);
        } else {
            std::fill_n(present, n, std::uint8_t{1});
        }
        kernels.apply_bits(column.validity, column.validity_offset + row, 1, n, present);
        missing += std::count(present, present + n, std::uint8_t{0});
    }
    return missing;
}

}  // namespace windeck
