// The ways to read stretches of a file, one of which reading.cpp chooses.

#pragma once

#include <cstdint>
#include <span>

#include "windeck/reading.hpp"

namespace windeck {

/// What stretches take together, and where in the file they lie.
struct Extent {
    std::uint64_t bytes = 0;
    std::uint64_t first = UINT64_MAX;
    std::uint64_t end = 0;

    [[nodiscard]] Extent with(const Stretch& stretch) const;
};

Extent extent_of(std::span<const Stretch> stretches);

/// Whether a mapping of all that lies between the first and the last of them can pay.
bool is_worth_mapping(const Extent& extent);

/// The kernel copies straight to the place; summed afterwards.
void read_cached(int file, std::span<Stretch> stretches);

/// By way of a buffer that stays in a cache.
void read_buffered(int file, std::span<Stretch> stretches);

/// From mappings of some MiB; what these do not give, by way of the buffer.
void read_mapped(int file, std::span<Stretch> stretches);

}  // namespace windeck
