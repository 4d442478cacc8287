// The series and the start row of every window, computed from window runs instead of a list.
//
// A window run is an arithmetic sequence of candidate windows in one series: the j-th of window run
// r starts at row first[r] + j * stride. Candidates are numbered through all window runs in order;
// a bitmap may select some of them. The windows are the selected candidates, numbered in order.
//
// Memory: O(window runs), and 1.25 bits per candidate with a bitmap. Locating a window and its
// inverse take expected O(1) time for window runs of similar size, O(log window runs) at worst. All
// numbers have 64 bits; the constructor throws where a sum would overflow. Immutable, hence
// thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "windeck/base/cumulative.hpp"

namespace windeck {

/// A bitmap with rank and select (Jacobson 1989): cumulative counts of every 512 bits.
class BitSelect {
  public:
    /// The first `size` bits of `bytes`, least significant bit first.
    BitSelect(std::span<const std::uint8_t> bytes, std::int64_t size);

    std::int64_t count() const noexcept { return ranks_.total(); }
    bool test(std::int64_t position) const noexcept;
    /// The number of ones before `position`.
    std::int64_t rank(std::int64_t position) const noexcept;
    /// The position of the one with `rank` ones before it; 0 <= rank < count().
    std::int64_t select(std::int64_t rank) const noexcept;

  private:
    std::vector<std::uint64_t> words_;
    Cumulative ranks_;
};

class WindowIndex {
  public:
    /// `first`, `count` and `series` have one entry per window run; an empty `series` numbers the
    /// window runs themselves. `keep` is a bitmap over all candidates, exactly ceil(candidates / 8)
    /// bytes. Throws std::invalid_argument for a stride below 1, a negative count or series,
    /// lengths that differ, and a window in two window runs; std::overflow_error for rows or a
    /// number of windows beyond 2^63 - 1.
    WindowIndex(std::span<const std::int64_t> first, std::span<const std::int64_t> count,
                std::int64_t stride, std::span<const std::int64_t> series = {},
                std::optional<std::span<const std::uint8_t>> keep = std::nullopt);

    std::int64_t size() const noexcept { return size_; }

    /// The smallest and the largest row a candidate starts at, and the largest series; 0, 0 and -1
    /// without candidates.
    std::int64_t min_row() const noexcept { return min_row_; }
    std::int64_t max_row() const noexcept { return max_row_; }
    std::int64_t max_series() const noexcept { return max_series_; }

    /// Whether the rows from `offset` to `offset + reach` of every candidate are in its series, of
    /// which s has the rows [bounds[s], bounds[s + 1]). O(window runs). No sum may leave 64 bits.
    bool within(std::span<const std::int64_t> bounds, std::int64_t offset,
                std::int64_t reach) const noexcept;

    /// Throws std::out_of_range, naming the first index that is not in [0, size()).
    void check(std::span<const std::int64_t> indices) const;

    /// Series and start row of each window. Indices must be in range.
    void locate(std::span<const std::int64_t> indices, std::int64_t* series,
                std::int64_t* rows) const noexcept;

    /// The same for the `count` windows from `start` on.
    void slice(std::int64_t start, std::int64_t count, std::int64_t* series,
               std::int64_t* rows) const noexcept;

    /// The window that starts at `row` of `series`, or -1.
    std::int64_t index_of(std::int64_t series, std::int64_t row) const noexcept;

  private:
    struct WindowRun {
        std::int64_t series;
        std::int64_t first;
        std::int64_t count;
    };

    void sort_window_runs();
    bool precedes(std::int64_t window_run, std::int64_t series, std::int64_t row) const noexcept;
    std::int64_t phase(std::int64_t row) const noexcept;
    std::int64_t window_run_of(std::int64_t series, std::int64_t row) const noexcept;

    std::vector<WindowRun> window_runs_;
    std::vector<std::int64_t>
        order_;  // window runs by (series, phase, first), where not their own order
    Cumulative candidates_;
    std::optional<BitSelect> keep_;
    std::int64_t stride_ = 1;
    std::int64_t size_ = 0;
    std::int64_t min_row_ = 0;
    std::int64_t max_row_ = 0;
    std::int64_t max_series_ = -1;
    bool by_window_run_ = false;  // series number = window run number
};

}  // namespace windeck
