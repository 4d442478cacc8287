// Which of two ways is the quicker one on this machine: found out by trying both in turn.
//
// Ask way(), go it, and say with took(way, cost) what it cost, in any unit. While one of the ways
// has been tried less than `trials` times, it is that one's turn; from then on the answer is the
// way with the least cost, for other work on the machine only adds to a cost. Thread-safe: calls
// that go on at once try a way more often, no more.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <mutex>

namespace windeck {

class Quicker {
  public:
    static constexpr int trials = 4;

    /// 0 or 1.
    std::size_t way() {
        const std::lock_guard lock(mutex_);
        const bool is_known = std::ranges::min(tried_) >= trials;
        return is_known ? (least_[1] < least_[0] ? 1 : 0) : (tried_[1] < tried_[0] ? 1 : 0);
    }

    void took(std::size_t way, double cost) {
        const std::lock_guard lock(mutex_);
        if (tried_[way] >= trials) return;  // what was found stays
        ++tried_[way];
        least_[way] = std::min(least_[way], cost);
    }

  private:
    std::mutex mutex_;
    std::array<int, 2> tried_{};
    std::array<double, 2> least_{std::numeric_limits<double>::infinity(),
                                 std::numeric_limits<double>::infinity()};
};

}  // namespace windeck
