#include "windeck/base/cumulative.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace windeck {
namespace {

constexpr int probes = 4;  // sums that are compared without a branch

std::size_t at(std::int64_t position) {
    return static_cast<std::size_t>(position);
}

}  // namespace

Cumulative::Cumulative(std::span<const std::int64_t> sizes)
    : parts_(static_cast<std::int64_t>(sizes.size())) {
    sums_.reserve(sizes.size() + 1 + probes);
    for (const std::int64_t size : sizes) {
        std::int64_t sum = 0;
        if (__builtin_add_overflow(sums_.back(), size, &sum)) {
            throw std::overflow_error("the sizes add up to more than 2^63 - 1");
        }
        sums_.push_back(sum);
    }
    // About one bucket per part, with the part of its first position.
    while ((total() >> shift_) > parts_)
        ++shift_;
    hints_.reserve(at((total() >> shift_) + 2));
    std::int64_t part = 0;
    for (std::int64_t bucket = 0; bucket <= (total() >> shift_); ++bucket) {
        while (part + 1 < parts_ && before(part + 1) <= bucket << shift_)
            ++part;
        hints_.push_back(part);
    }
    hints_.push_back(std::max<std::int64_t>(parts_ - 1, 0));
    sums_.insert(sums_.end(), probes, std::numeric_limits<std::int64_t>::max());
}

std::int64_t Cumulative::find(std::int64_t position) const noexcept {
    const std::size_t bucket = at(position >> shift_);
    const std::int64_t* const first = sums_.data() + hints_[bucket] + 1;
    // The part is mostly one of the next few; a branch on which one would be mispredicted.
    std::int64_t passed = 0;
    for (int i = 0; i < probes; ++i)
        passed += first[i] <= position ? 1 : 0;
    if (passed < probes) return hints_[bucket] + passed;
    const std::int64_t* const last = sums_.data() + hints_[bucket + 1] + 1;
    return std::upper_bound(first + probes, last, position) - sums_.data() - 1;
}

void Cumulative::find(std::span<const std::int64_t> positions, std::int64_t* parts,
                      std::int64_t* within) const noexcept {
    for (std::size_t i = 0; i < positions.size(); ++i) {
        parts[i] = find(positions[i]);
        within[i] = positions[i] - before(parts[i]);
    }
}

}  // namespace windeck
