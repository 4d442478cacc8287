// Numbers for tests, drawn the same in every run.

#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace windeck {

using Numbers = std::vector<std::int64_t>;

/// A number in [low, high].
inline std::int64_t draw(std::int64_t low, std::int64_t high) {
    static std::mt19937_64 bits(7);
    return std::uniform_int_distribution<std::int64_t>(low, high)(bits);
}

/// A position as std::size_t.
inline std::size_t at(std::int64_t position) {
    return static_cast<std::size_t>(position);
}

}  // namespace windeck
