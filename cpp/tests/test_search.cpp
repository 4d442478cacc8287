#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "windeck/elements.hpp"
#include "windeck/hash.hpp"
#include "windeck/search.hpp"

namespace {

using namespace windeck;

constexpr double inf = std::numeric_limits<double>::infinity();

template <typename Value>
std::span<const std::byte> bytes_of(const std::vector<Value>& values) {
    return std::as_bytes(std::span(values));
}

void test_names_and_sizes() {
    for (std::size_t i = 0; i < element_names.size(); ++i) {
        const auto element = static_cast<Element>(i);
        check(element_named(name(element)) == element, "a name");
        if (kind_of(element) == ElementKind::complex)
            check(size_of(element) == 2 * size_of(part_of(element)), "two parts");
    }
    check(!element_named("float31").has_value(), "an unknown name");
}

void test_small_floats() {
    check(small_float(Element::float16, 0x3c00) == 1, "1 as float16");
    check(small_float(Element::float16, 0x0001) == 0x1p-24, "the least float16");
    check(small_float(Element::bfloat16, 0xff80) == -inf, "-inf as bfloat16");
    check(small_float(Element::float8_e4m3fn, 0x7e) == 448, "the greatest e4m3fn");
    check(std::isnan(small_float(Element::float8_e4m3fn, 0xff)), "NaN as e4m3fn");
    check(std::isnan(small_float(Element::float8_e5m2fnuz, 0x80)), "NaN as e5m2fnuz");
    check(small_float(Element::float8_e8m0fnu, 0) == 0x1p-127, "the least e8m0fnu");
    for (std::uint64_t i = 0; i < 100'000; ++i) {
        const auto bits = static_cast<std::uint32_t>(key(1, i));
        const auto wanted = static_cast<double>(std::bit_cast<float>(bits));
        const double found = small_float(Element::float32, bits);
        check(found == wanted || (std::isnan(found) && std::isnan(wanted)), "a float32");
    }
}

// Against a plain loop, for random bits and random ranges.
void test_float32_against_a_loop() {
    std::vector<float> values(5000);
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(key(2, i)));
    for (std::size_t round = 0; round < 50; ++round) {
        const double a = values[round * 7];
        const double b = values[round * 11 + 1];
        if (std::isnan(a) || std::isnan(b)) continue;
        const bool nan = round % 2 == 0;
        const Search search(Element::float32, std::vector<Range<double>>{{a, b}, {1, 2}}, nan);
        std::vector<std::int64_t> wanted;
        for (std::size_t i = 0; i < values.size(); ++i) {
            const double x = values[i];
            const bool in = std::isnan(x) ? nan : (x >= a && x <= b) || (x >= 1 && x <= 2);
            if (in) wanted.push_back(100 + static_cast<std::int64_t>(i));
        }
        std::vector<std::int64_t> found;
        const auto count = search.find(bytes_of(values), 1'000'000, 100, found);
        check(found == wanted, "positions");
        check(count == static_cast<std::int64_t>(wanted.size()), "the count");
        found.clear();
        check(search.find(bytes_of(values), 3, 100, found) == count, "the count with a limit");
        check(found.size() == std::min<std::size_t>(3, wanted.size()), "a limit");
    }
}

void test_integers_of_all_sizes() {
    const std::vector<std::uint64_t> naturals = {0, 1, 5, UINT64_MAX, UINT64_MAX - 1, 1ULL << 63};
    std::vector<std::int64_t> found;
    Search(Element::uint64, std::vector<Range<std::uint64_t>>{{1ULL << 63, UINT64_MAX}}, false)
        .find(bytes_of(naturals), 9, 0, found);
    check(found == std::vector<std::int64_t>{3, 4, 5}, "uint64");
    found.clear();
    const std::vector<std::int16_t> wholes = {-32768, -1, 0, 32767};
    Search(Element::int16, std::vector<Range<std::int64_t>>{{INT64_MIN, -1}, {32767, 1 << 20}},
           false)
        .find(bytes_of(wholes), 9, 0, found);
    check(found == std::vector<std::int64_t>{0, 1, 3}, "int16, ranges cut to what it can hold");
    found.clear();
    const std::vector<std::uint8_t> booleans = {0, 1, 2, 255};
    Search(Element::boolean, std::vector<Range<std::uint64_t>>{{1, 1}}, false)
        .find(bytes_of(booleans), 9, 0, found);
    check(found == std::vector<std::int64_t>{1, 2, 3}, "any other byte is true");
}

void test_complex() {
    const std::vector<std::complex<double>> values = {
        {3, 4}, {0, 5.5}, {inf, 1}, {std::nan(""), 0}, {1e-170, 0}};
    std::vector<std::int64_t> found;
    const Search near(Element::complex128, std::vector<Range<double>>{{0, 0}}, true, {3, 4});
    check(near.find(bytes_of(values), 9, 0, found) == 2, "at the centre, and NaN");
    check(found == std::vector<std::int64_t>{0, 3}, "at the centre, and NaN");
    found.clear();
    const Search tiny(Element::complex128, std::vector<Range<double>>{{1e-171, 1e-169}, {inf, inf}},
                      false);
    tiny.find(bytes_of(values), 9, 0, found);
    check(found == std::vector<std::int64_t>{2, 4}, "infinite, and squares that vanish");
}

void test_refusals() {
    const std::vector<Range<double>> real = {{0, 1}};
    check_throws<std::invalid_argument>([&] { Search(Element::int8, real, false); },
                                        "the ranges are not of the kind of int8");
    check_throws<std::invalid_argument>(
        [&] { Search(Element::float32, std::vector<Range<double>>{{std::nan(""), 1}}, false); },
        "a bound of a range is NaN");
    check_throws<std::invalid_argument>([&] { Search(Element::complex64, real, false, {inf, 0}); },
                                        "the centre is not finite");
}

}  // namespace

int main() {
    test_names_and_sizes();
    test_small_floats();
    test_float32_against_a_loop();
    test_integers_of_all_sizes();
    test_complex();
    test_refusals();
}
