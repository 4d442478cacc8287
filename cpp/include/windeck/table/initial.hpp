// The initial values of ids: a pure function of (seed, id).
//
// The initial vector of an id does not depend on rows stored, shards or the order of lookups. This
// is a published part of embedding tables: any change of it changes every table, so the tests have
// golden values.
//
// Element j of an id's vector comes from 53 hashed bits (see hash.hpp):
//     state = absorb(absorb(absorb(0, initial_tag), seed), id)
//     u     = ((key(state, j) >> 11) + 0.5) * 2^-53, in (0, 1)
// and is, computed in double precision and rounded once to float32,
//     zeros    0
//     uniform  scale * (2 u - 1), in [-scale, scale]
//     normal   scale * q(u), with q the quantile of the standard normal distribution
//
// q is AS 241 (PPND7; Wichura 1988), good to about seven digits. It is made of +, -, *, / and
// square root, which IEEE 754 rounds correctly, and of a logarithm built from the same, so that the
// bits are equal on every platform; the library's log is not so. The core is compiled without
// contraction to fused multiply-adds.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace windeck {

enum class Initializer { zeros, uniform, normal };

/// Absorbed first, so that these keys are independent of other uses of a seed.
inline constexpr std::uint64_t initial_tag = 0x696e697469616c31;

class InitialValues {
  public:
    /// `scale` is finite and not negative.
    InitialValues(Initializer kind, double scale, std::uint64_t seed);

    /// Writes the elements [first, first + values.size()) of an id's vector. O(values),
    /// thread-safe.
    void write(std::int64_t id, std::span<float> values, std::size_t first = 0) const noexcept;

  private:
    Initializer kind_;
    double scale_;
    std::uint64_t seeded_;
};

/// The quantile of the standard normal distribution for a probability u in (0, 1).
double normal_quantile(double u) noexcept;

}  // namespace windeck
