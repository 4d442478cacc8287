// Prefix sums of the sizes of parts, to find the part that holds a position.
//
// Memory: 16 bytes per part. Finding takes expected O(1) time for parts of similar size, O(log
// parts) at worst. Parts may have size 0; no position is in them. Immutable, hence thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace windeck {

class Cumulative {
  public:
    Cumulative() = default;

    /// Sizes must not be negative; throws std::overflow_error when their sum exceeds 2^63 - 1.
    explicit Cumulative(std::span<const std::int64_t> sizes);

    std::int64_t parts() const noexcept { return parts_; }
    std::int64_t total() const noexcept { return before(parts_); }

    /// The number of positions before part p, 0 <= p <= parts().
    std::int64_t before(std::int64_t part) const noexcept {
        return sums_[static_cast<std::size_t>(part)];
    }

    /// The part p with before(p) <= position < before(p + 1); 0 <= position < total().
    std::int64_t find(std::int64_t position) const noexcept;

    /// The part of each position, and its offset in that part.
    void find(std::span<const std::int64_t> positions, std::int64_t* parts,
              std::int64_t* within) const noexcept;

  private:
    std::vector<std::int64_t> sums_{0};  // and some values above every position
    std::int64_t parts_ = 0;
    std::vector<std::int64_t> hints_;  // by position >> shift_: the part of the first such position
    int shift_ = 0;
};

}  // namespace windeck
