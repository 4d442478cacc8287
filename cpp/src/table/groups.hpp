// Which occurrences in a batch are of the same row.
//
// Kept from call to call: fresh pages cost more than the work that is done in them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace windeck {

struct Groups {
    static constexpr std::size_t none = ~std::size_t{0};

    struct Row {
        std::uint64_t number;
        std::size_t first;  // its first and last occurrence
        std::size_t last;
    };

    std::vector<Row> rows;          // in order of their first occurrence
    std::vector<std::size_t> next;  // the next occurrence of the same row, or none

    /// Of a batch of packed places; those without a row are left out. Expected O(places).
    void make(std::span<const std::uint64_t> places);

    std::size_t bytes() const noexcept;

  private:
    std::vector<std::size_t> table_;  // row number -> place in `rows`, by open addressing
};

}  // namespace windeck
