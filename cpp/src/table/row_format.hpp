// The numbers of rows in memory: float32, or bfloat16, which is the upper half of a float32.
//
// All arithmetic is in float32. A number is rounded when it is stored, to nearest, ties to even.
// The bytes of saved rows are in windeck/table/block_layout.hpp.

#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "windeck/base/dtype.hpp"
#include "windeck/table/initial.hpp"

namespace windeck {

inline float from_bfloat16(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t to_bfloat16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
    return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

class RowFormat {
  public:
    explicit RowFormat(DType dtype) : narrow_(dtype == DType::bfloat16) {}

    bool is_bfloat16() const noexcept { return narrow_; }
    std::size_t bytes(std::size_t numbers) const noexcept { return numbers * (narrow_ ? 2U : 4U); }

    void read(const std::byte* from, std::span<float> to) const noexcept {
        if (!narrow_) {
            std::memcpy(to.data(), from, to.size_bytes());
            return;
        }
        const auto* const bits = reinterpret_cast<const std::uint16_t*>(from);
        for (std::size_t i = 0; i < to.size(); ++i)
            to[i] = from_bfloat16(bits[i]);
    }

    void write(std::span<const float> from, std::byte* to) const noexcept {
        if (!narrow_) {
            std::memcpy(to, from.data(), from.size_bytes());
            return;
        }
        auto* const bits = reinterpret_cast<std::uint16_t*>(to);
        for (std::size_t i = 0; i < from.size(); ++i)
            bits[i] = to_bfloat16(from[i]);
    }

    /// Writes the first `count` initial values of an id.
    void write_initial(const InitialValues& initial, std::int64_t id, std::byte* to,
                       std::size_t count) const noexcept {
        if (!narrow_) return initial.write(id, {reinterpret_cast<float*>(to), count});
        float part[64];
        for (std::size_t i = 0; i < count; i += std::size(part)) {
            const std::span<float> some(part, std::min(std::size(part), count - i));
            initial.write(id, some, i);
            write(some, to + bytes(i));
        }
    }

  private:
    bool narrow_;
};

}  // namespace windeck
