// Finding elements of a tensor by value, in its raw bytes.
//
// What is sought is a set of numbers: closed ranges, of float64 for floats, of 64-bit integers for
// integers, and NaN or not. So `x > t` is [the next float64 after t, inf], `abs > t` is two ranges,
// `!=` is two and NaN. A number of a complex type is sought by its distance from a centre: its
// modulus, for a centre of 0. -0 is 0. A complex number with a NaN in it is NaN, and at no
// distance.
//
// Of types with more than 8 bits the ranges become ranges of codes: integers in the order of the
// values, so that a block is compared by a loop without branches for any type, and no rounding is
// involved. Types of 8 bits go by a table of 256 answers.
//
// O(n ranges) time; memory for the positions asked for. Immutable after construction, hence
// thread-safe. Results do not depend on how a tensor is cut into buffers.

#pragma once

#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "windeck/elements.hpp"

namespace windeck {

template <typename Number>
struct Range {
    Number low;
    Number high;  // included; a range with high < low is empty
};

/// By ElementKind: real and complex, whole, natural.
using Ranges = std::variant<std::vector<Range<double>>, std::vector<Range<std::int64_t>>,
                            std::vector<Range<std::uint64_t>>>;

class Search {
  public:
    /// Throws std::invalid_argument when the ranges are not of the element's kind, or a bound is
    /// NaN, or the centre is not finite.
    Search(Element element, const Ranges& ranges, bool nan, std::complex<double> center = {});

    [[nodiscard]] Element element() const noexcept { return element_; }

    /// The number of elements in `bytes` that are sought. base + i of each found at i is appended
    /// to `positions`, in ascending order, up to `limit` of them. Bytes that are no whole element
    /// at the end are not looked at.
    std::int64_t find(std::span<const std::byte> bytes, std::int64_t limit, std::int64_t base,
                      std::vector<std::int64_t>& positions) const;

  private:
    Element element_;
    std::vector<Range<std::int64_t>> codes_;   // of more than 8 bits
    std::array<std::uint8_t, 256> answers_{};  // of 8 bits
    std::vector<Range<double>> distances_;     // of complex types
    bool nan_;
    std::complex<double> center_;
};

}  // namespace windeck
