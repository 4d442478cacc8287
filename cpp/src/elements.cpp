#include "windeck/elements.hpp"

#include <bit>
#include <cmath>
#include <limits>

#include "element_codes.hpp"

namespace windeck {
namespace {

enum class Codes : std::uint8_t { ieee, fn, fnuz };

struct Format {
    int exponent;  // bits
    int fraction;
    int bias;
    Codes codes;
};

Format format_of(Element element) {
    switch (element) {
        case Element::float32:
            return {8, 23, 127, Codes::ieee};
        case Element::float16:
            return {5, 10, 15, Codes::ieee};
        case Element::bfloat16:
            return {8, 7, 127, Codes::ieee};
        case Element::float8_e4m3fn:
            return {4, 3, 7, Codes::fn};
        case Element::float8_e4m3fnuz:
            return {4, 3, 8, Codes::fnuz};
        case Element::float8_e5m2fnuz:
            return {5, 2, 16, Codes::fnuz};
        default:
            return {5, 2, 15, Codes::ieee};  // float8_e5m2
    }
}

}  // namespace

double small_float(Element element, std::uint32_t bits) {
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    if (element == Element::float8_e8m0fnu)
        return bits == 0xff ? nan : std::ldexp(1.0, static_cast<int>(bits) - 127);
    const Format format = format_of(element);
    const int width = format.exponent + format.fraction;
    const std::uint32_t fraction = bits & ((1U << format.fraction) - 1);
    const auto exponent = static_cast<int>(bits >> format.fraction & ((1U << format.exponent) - 1));
    const std::uint32_t magnitude = bits & ((1U << width) - 1);
    const bool negative = (bits >> width & 1) != 0;
    const int last = (1 << format.exponent) - 1;
    if (format.codes == Codes::ieee && exponent == last) {
        if (fraction != 0) return nan;
        return negative ? -std::numeric_limits<double>::infinity()
                        : std::numeric_limits<double>::infinity();
    }
    if (format.codes == Codes::fn && magnitude == (1U << width) - 1) return nan;
    if (format.codes == Codes::fnuz && negative && magnitude == 0) return nan;
    const std::uint32_t digits = exponent == 0 ? fraction : fraction | 1U << format.fraction;
    const int power = (exponent == 0 ? 1 : exponent) - format.bias - format.fraction;
    const double value = std::ldexp(static_cast<double>(digits), power);
    return negative ? -value : value;
}

void read_reals(Element element, const std::byte* data, std::size_t count, double* values) {
    using codes::load;
    const auto each = [&](auto value_at) {
        for (std::size_t i = 0; i < count; ++i)
            values[i] = value_at(i);
    };
    switch (element) {
        case Element::float64:
            return each([&](std::size_t i) { return load<double>(data, i); });
        case Element::float32:
            return each([&](std::size_t i) { return static_cast<double>(load<float>(data, i)); });
        case Element::float16:
            return each([&](std::size_t i) { return halves()[load<std::uint16_t>(data, i)]; });
        case Element::bfloat16:
            return each([&](std::size_t i) {
                const auto upper = static_cast<std::uint32_t>(load<std::uint16_t>(data, i)) << 16;
                return static_cast<double>(std::bit_cast<float>(upper));
            });
        default:
            break;
    }
    std::array<double, 256> values_of_codes{};
    for (std::uint32_t code = 0; code < 256; ++code)
        values_of_codes[code] = small_float(element, code);
    each([&](std::size_t i) { return values_of_codes[static_cast<std::uint8_t>(data[i])]; });
}

const std::array<float, 65536>& halves() {
    static const std::array<float, 65536> table = [] {
        std::array<float, 65536> made{};
        for (std::uint32_t bits = 0; bits < 65536; ++bits)
            made[bits] = static_cast<float>(small_float(Element::float16, bits));
        return made;
    }();
    return table;
}

}  // namespace windeck
