// The occurrences of each row in a batch.
//
// Reused between calls, since page faults of new memory cost more than the work.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace windeck {

struct RowOccurrences {
    static constexpr std::size_t none = ~std::size_t{0};

    struct Row {
        std::uint64_t number;
        std::size_t first;  // its first and last occurrence
        std::size_t last;
    };

    std::vector<Row> rows;          // in order of their first occurrence
    std::vector<std::size_t> next;  // the next occurrence of the same row, or none

    /// Collects the occurrences in a batch of packed locations; locations without a row are
    /// ignored. Expected O(places).
    void make(std::span<const std::uint64_t> places);

    std::size_t bytes() const noexcept;

  private:
    std::vector<std::size_t> table_;  // row number -> place in `rows`, by open addressing
};

}  // namespace windeck
