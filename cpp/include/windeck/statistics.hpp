// What the values of a tensor are like, in one pass over its raw bytes.
//
// Counted are elements, NaNs, infinities of either sign, zeros (-0 too), and what falls into each
// bin of a histogram. Of the finite values: least, greatest, mean, standard deviation (of the
// population, divided by n), and the `largest` ones by magnitude, of equal ones those that come
// first. A complex number counts by its modulus, and is NaN when a part is.
//
// Bin i is [edge i, edge i + 1), the last one with its upper edge; infinities are below or above.
// Integers of 64 bits are rounded to float64 for bins and mean; least, greatest and largest are
// exact.
//
// Mean and deviation: blocks of 2,048 elements in two passes each, joined by the formula of Chan,
// Golub & LeVeque (1983) with the mean as a sum of two float64, so both stay right far from zero.
// Blocks begin where a buffer does; so results are the same bits for any cut at multiples of 2,048,
// and by any number of threads whose parts are merged in a fixed order. Where squares go beyond
// float64 the deviation is infinite.
//
// O(n log bins) time at worst; memory O(bins + largest). Not thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "windeck/elements.hpp"

namespace windeck {

/// A number of any type: the field of its kind is set. Moduli are real.
struct Scalar {
    double real = 0;
    std::int64_t whole = 0;
    std::uint64_t natural = 0;
};

struct Largest {
    std::uint64_t magnitude;  // of integers; of floats the bits of the float64, in the same order
    std::int64_t position;
    bool negative;
};

class Statistics {
  public:
    /// Edges ascend strictly and are finite, none or at least two; `largest` >= 0. Throws
    /// std::invalid_argument otherwise.
    Statistics(Element element, std::vector<double> edges, std::int64_t largest);

    /// Elements at positions base, base + 1, ...
    void add(std::span<const std::byte> bytes, std::int64_t base);

    /// As if the other's elements had been added. Throws std::invalid_argument unless it was made
    /// with the same arguments.
    void merge(const Statistics& other);

    [[nodiscard]] Element element() const noexcept { return element_; }
    [[nodiscard]] bool has_least() const noexcept { return finite_ > 0; }
    [[nodiscard]] double mean() const;                    // of finite() > 0
    [[nodiscard]] double deviation() const;               // likewise
    [[nodiscard]] std::vector<Largest> largest() const;   // the largest first
    [[nodiscard]] Scalar value_of(const Largest&) const;  // the number it stands for
    [[nodiscard]] std::span<const double> edges() const noexcept { return edges_; }
    [[nodiscard]] std::span<const std::int64_t> bins() const noexcept { return bins_; }

    std::int64_t count = 0;
    std::int64_t nan = 0;
    std::int64_t positive_infinite = 0;
    std::int64_t negative_infinite = 0;
    std::int64_t zeros = 0;
    std::int64_t below = 0;
    std::int64_t above = 0;
    Scalar least{std::numeric_limits<double>::infinity(), std::numeric_limits<std::int64_t>::max(),
                 std::numeric_limits<std::uint64_t>::max()};
    Scalar greatest{-std::numeric_limits<double>::infinity(),
                    std::numeric_limits<std::int64_t>::min(), 0};

    /// Elements that are neither NaN nor infinite.
    [[nodiscard]] std::int64_t finite() const noexcept { return finite_; }

  private:
    template <typename Raw>
    void add_whole(std::span<const std::byte> bytes, std::int64_t base);
    void add_real(std::span<const std::byte> bytes, std::int64_t base);
    void decode(const std::byte* data, std::size_t first, std::size_t size, double* values) const;
    std::size_t keep_finite(double* values, std::size_t size);
    void add_moments(const double* values, std::size_t size);
    void join(double mean, double rest, double squares, std::int64_t size);
    void add_bins(const double* values, std::size_t size);
    void offer(Largest candidate);

    Element element_;
    std::vector<double> edges_;
    std::vector<std::int64_t> bins_;
    double bins_per_unit_ = 0;  // where edges are evenly spaced: a first guess
    std::size_t wanted_;
    std::vector<Largest> heap_;
    std::int64_t finite_ = 0;
    double mean_ = 0;
    double rest_ = 0;  // what rounding took from mean_
    double squares_ = 0;
};

}  // namespace windeck
