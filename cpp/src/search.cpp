#include "windeck/search.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "element_codes.hpp"

namespace windeck {
namespace {

constexpr std::size_t block_size = 1024;  // codes and marks of a block stay in the first cache

/// The value of a non-negative code of a float.
double magnitude_of(Element element, std::int64_t code) {
    if (element == Element::float64) return std::bit_cast<double>(code);
    return small_float(element, static_cast<std::uint32_t>(code));
}

double value_of(Element element, std::int64_t code) {
    return code < 0 ? -magnitude_of(element, -code) : magnitude_of(element, code);
}

std::int64_t double_code(double value) {
    return codes::of_float(std::bit_cast<std::int64_t>(value));
}

/// The code of infinity.
std::int64_t infinity_of(Element element) {
    switch (element) {
        case Element::float64:
            return 0x7ff0000000000000;
        case Element::float32:
            return 0x7f800000;
        case Element::float16:
            return 0x7c00;
        default:
            return 0x7f80;  // bfloat16
    }
}

/// The first code whose value is not below (strictly: is above) a bound; infinity + 1 for none.
/// Values are compared by their codes as float64: right also where the processor takes subnormal
/// numbers for zero, as torch.set_flush_denormal has it.
std::int64_t first_code(Element element, double bound, bool above) {
    const std::int64_t end = infinity_of(element);
    const std::int64_t wanted = double_code(bound);
    std::int64_t low = -end;
    std::int64_t high = end + 1;
    while (low < high) {
        const auto apart = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
        const std::int64_t middle = low + static_cast<std::int64_t>(apart / 2);
        const std::int64_t value = double_code(value_of(element, middle));
        const bool reached = above ? value > wanted : value >= wanted;
        if (reached) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/// The largest code of all, a NaN.
std::int64_t last_code(Element element) {
    return std::numeric_limits<std::int64_t>::max() >>
           (64 - 8 * static_cast<int>(size_of(element)));
}

std::vector<Range<std::int64_t>> float_codes(Element element,
                                             const std::vector<Range<double>>& ranges, bool nan) {
    std::vector<Range<std::int64_t>> codes;
    for (const auto& [low, high] : ranges) {
        const Range<std::int64_t> found{first_code(element, low, false),
                                        first_code(element, high, true) - 1};
        if (found.low <= found.high) codes.push_back(found);
    }
    if (nan) {
        const std::int64_t first = infinity_of(element) + 1;
        const std::int64_t last = last_code(element);
        codes.push_back({first, last});
        codes.push_back({-last, -first});
    }
    return codes;
}

/// Ranges of integers cut to what a type of `bits` can hold, as codes.
template <typename Number>
std::vector<Range<std::int64_t>> whole_codes(const std::vector<Range<Number>>& ranges, int bits) {
    constexpr bool natural = std::is_unsigned_v<Number>;
    const auto least = static_cast<Number>(std::numeric_limits<Number>::min() >> (64 - bits));
    const auto most = static_cast<Number>(std::numeric_limits<Number>::max() >> (64 - bits));
    const auto half = std::uint64_t{1} << (bits - 1);
    std::vector<Range<std::int64_t>> codes;
    for (const auto& range : ranges) {
        const Number low = std::max(range.low, least);
        const Number high = std::min(range.high, most);
        if (low > high) continue;
        const auto code = [&](Number value) {
            const auto word = static_cast<std::uint64_t>(value);
            return static_cast<std::int64_t>(natural ? word - half : word);
        };
        codes.push_back({code(low), code(high)});
    }
    return codes;
}

template <typename Number>
bool in_any(const std::vector<Range<Number>>& ranges, Number value) {
    return std::ranges::any_of(
        ranges, [&](const auto& range) { return range.low <= value && value <= range.high; });
}

template <typename List>
const List& of_kind(const Ranges& ranges, Element element) {
    const List* const found = std::get_if<List>(&ranges);
    if (found == nullptr)
        throw std::invalid_argument("the ranges are not of the kind of " +
                                    std::string(name(element)));
    return *found;
}

/// Appends base + i for each mark that is set, up to `room` of them.
template <typename Mark>
void collect(const Mark* marks, std::size_t count, std::int64_t base, std::int64_t& room,
             std::vector<std::int64_t>& positions) {
    for (std::size_t i = 0; i < count && room > 0; ++i) {
        if (marks[i] == 0) continue;
        positions.push_back(base + static_cast<std::int64_t>(i));
        --room;
    }
}

/// All blocks of `count` elements; mark(first, size, marks) sets marks to 0 or 1.
template <typename Mark, typename Body>
std::int64_t by_blocks(std::size_t count, std::int64_t room, std::int64_t base,
                       std::vector<std::int64_t>& positions, Body mark) {
    Mark marks[block_size];
    std::int64_t found = 0;
    for (std::size_t first = 0; first < count; first += block_size) {
        const std::size_t size = std::min(block_size, count - first);
        mark(first, size, marks);
        std::int64_t here = 0;
        for (std::size_t i = 0; i < size; ++i)
            here += marks[i];
        if (here != 0)
            collect(marks, size, base + static_cast<std::int64_t>(first), room, positions);
        found += here;
    }
    return found;
}

template <typename Code, auto code_of>
std::int64_t find_codes(std::span<const std::byte> bytes, std::int64_t room, std::int64_t base,
                        std::vector<std::int64_t>& positions,
                        const std::vector<Range<std::int64_t>>& ranges) {
    const auto body = [&](std::size_t first, std::size_t size, Code* marks) {
        Code values[block_size];
        for (std::size_t i = 0; i < size; ++i) {
            values[i] = code_of(codes::load<Code>(bytes.data() + first * sizeof(Code), i));
            marks[i] = 0;
        }
        for (const auto& range : ranges) {
            const auto low = static_cast<Code>(range.low);
            const auto high = static_cast<Code>(range.high);
            for (std::size_t i = 0; i < size; ++i) {
                const auto in = static_cast<Code>((values[i] >= low) & (values[i] <= high));
                marks[i] = static_cast<Code>(marks[i] | in);
            }
        }
    };
    return by_blocks<Code>(bytes.size() / sizeof(Code), room, base, positions, body);
}

template <typename Code>
constexpr Code same(Code bits) {
    return bits;
}

double as_double(double value) {
    return value;
}
double as_double(float value) {
    return value;
}
double as_double(std::uint16_t half) {
    return halves()[half];
}

/// How far off a centre is. Squares of floats of 32 bits neither overflow nor vanish in float64.
template <typename Part>
double distance(double real, double imaginary) {
    if constexpr (sizeof(Part) == 8) return std::hypot(real, imaginary);
    return std::sqrt(real * real + imaginary * imaginary);
}

template <typename Part>
std::int64_t find_complex(std::span<const std::byte> bytes, std::int64_t room, std::int64_t base,
                          std::vector<std::int64_t>& positions,
                          const std::vector<Range<double>>& distances, bool nan,
                          std::complex<double> center) {
    const auto body = [&](std::size_t first, std::size_t size, std::uint8_t* marks) {
        for (std::size_t i = 0; i < size; ++i) {
            const double real = as_double(codes::load<Part>(bytes.data(), 2 * (first + i)));
            const double imaginary =
                as_double(codes::load<Part>(bytes.data(), 2 * (first + i) + 1));
            const bool is_nan = std::isnan(real) || std::isnan(imaginary);
            marks[i] = is_nan ? nan
                              : in_any(distances, distance<Part>(real - center.real(),
                                                                 imaginary - center.imag()));
        }
    };
    return by_blocks<std::uint8_t>(bytes.size() / (2 * sizeof(Part)), room, base, positions, body);
}

}  // namespace

Search::Search(Element element, const Ranges& ranges, bool nan, std::complex<double> center)
    : element_(element), nan_(nan), center_(center) {
    const int bits = 8 * static_cast<int>(size_of(element));
    if (!std::isfinite(center.real()) || !std::isfinite(center.imag()))
        throw std::invalid_argument("the centre is not finite");
    if (const auto* const given = std::get_if<std::vector<Range<double>>>(&ranges)) {
        for (const auto& [low, high] : *given)
            if (std::isnan(low) || std::isnan(high))
                throw std::invalid_argument("a bound of a range is NaN");
    }
    switch (kind_of(element)) {
        case ElementKind::complex:
            distances_ = of_kind<std::vector<Range<double>>>(ranges, element);
            break;
        case ElementKind::real: {
            const auto& given = of_kind<std::vector<Range<double>>>(ranges, element);
            if (bits > 8) {
                codes_ = float_codes(element, given, nan);
                break;
            }
            for (std::uint32_t code = 0; code < 256; ++code) {
                const double value = small_float(element, code);
                answers_[code] = std::isnan(value) ? nan : in_any(given, value);
            }
            break;
        }
        case ElementKind::whole: {
            const auto& given = of_kind<std::vector<Range<std::int64_t>>>(ranges, element);
            if (bits > 8) {
                codes_ = whole_codes(given, bits);
                break;
            }
            for (std::uint32_t code = 0; code < 256; ++code)
                answers_[code] = in_any<std::int64_t>(given, static_cast<std::int8_t>(code));
            break;
        }
        case ElementKind::natural: {
            const auto& given = of_kind<std::vector<Range<std::uint64_t>>>(ranges, element);
            if (bits > 8) {
                codes_ = whole_codes(given, bits);
                break;
            }
            const bool boolean = element == Element::boolean;
            for (std::uint32_t code = 0; code < 256; ++code)
                answers_[code] = in_any<std::uint64_t>(given, boolean ? code != 0 : code);
            break;
        }
    }
}

std::int64_t Search::find(std::span<const std::byte> bytes, std::int64_t limit, std::int64_t base,
                          std::vector<std::int64_t>& positions) const {
    using codes::of_float;
    using codes::of_natural;
    switch (element_) {
        case Element::float64:
            return find_codes<std::int64_t, of_float<std::int64_t>>(bytes, limit, base, positions,
                                                                    codes_);
        case Element::float32:
            return find_codes<std::int32_t, of_float<std::int32_t>>(bytes, limit, base, positions,
                                                                    codes_);
        case Element::float16:
        case Element::bfloat16:
            return find_codes<std::int16_t, of_float<std::int16_t>>(bytes, limit, base, positions,
                                                                    codes_);
        case Element::int64:
            return find_codes<std::int64_t, same<std::int64_t>>(bytes, limit, base, positions,
                                                                codes_);
        case Element::int32:
            return find_codes<std::int32_t, same<std::int32_t>>(bytes, limit, base, positions,
                                                                codes_);
        case Element::int16:
            return find_codes<std::int16_t, same<std::int16_t>>(bytes, limit, base, positions,
                                                                codes_);
        case Element::uint64:
            return find_codes<std::int64_t, of_natural<std::int64_t>>(bytes, limit, base, positions,
                                                                      codes_);
        case Element::uint32:
            return find_codes<std::int32_t, of_natural<std::int32_t>>(bytes, limit, base, positions,
                                                                      codes_);
        case Element::uint16:
            return find_codes<std::int16_t, of_natural<std::int16_t>>(bytes, limit, base, positions,
                                                                      codes_);
        case Element::complex32:
            return find_complex<std::uint16_t>(bytes, limit, base, positions, distances_, nan_,
                                               center_);
        case Element::complex64:
            return find_complex<float>(bytes, limit, base, positions, distances_, nan_, center_);
        case Element::complex128:
            return find_complex<double>(bytes, limit, base, positions, distances_, nan_, center_);
        default:
            break;
    }
    const auto body = [&](std::size_t first, std::size_t size, std::uint8_t* marks) {
        for (std::size_t i = 0; i < size; ++i)
            marks[i] = answers_[static_cast<std::uint8_t>(bytes[first + i])];
    };
    return by_blocks<std::uint8_t>(bytes.size(), limit, base, positions, body);
}

}  // namespace windeck
