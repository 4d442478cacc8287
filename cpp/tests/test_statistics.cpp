#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "windeck/hash.hpp"
#include "windeck/statistics.hpp"

namespace {

using namespace windeck;

std::vector<double> some(std::size_t size) {
    std::vector<double> values(size);
    for (std::size_t i = 0; i < size; ++i)
        values[i] = static_cast<double>(key(3, i) >> 40) / 65536 - 100;
    return values;
}

void test_against_long_double() {
    const auto values = some(10'000);
    Statistics statistics(Element::float64, {-100, 0, 50, 156}, 3);
    statistics.add(std::as_bytes(std::span(values)), 0);
    long double sum = 0;
    for (const double x : values)
        sum += x;
    const long double mean = sum / 10'000;
    long double squares = 0;
    for (const double x : values)
        squares += (x - mean) * (x - mean);
    const auto deviation = static_cast<double>(std::sqrt(squares / 10'000));
    check(std::abs(statistics.mean() - static_cast<double>(mean)) < 1e-12, "the mean");
    check(std::abs(statistics.deviation() - deviation) < 1e-11, "the deviation");
    check(statistics.least.real == std::ranges::min(values), "the least");
    check(statistics.greatest.real == std::ranges::max(values), "the greatest");
    const auto below = std::ranges::count_if(values, [](double x) { return x < 0; });
    check(statistics.bins()[0] == below, "the first bin");
    check(statistics.bins()[0] + statistics.bins()[1] + statistics.bins()[2] == 10'000, "all bins");
    auto sorted = values;
    std::ranges::sort(sorted, [](double a, double b) { return std::abs(a) > std::abs(b); });
    for (std::size_t i = 0; i < 3; ++i)
        check(statistics.value_of(statistics.largest()[i]).real == sorted[i], "the largest");
}

void test_what_is_not_finite() {
    constexpr double inf = std::numeric_limits<double>::infinity();
    const std::vector<double> values = {1, inf, -inf, std::nan(""), -0.0, 3};
    Statistics statistics(Element::float64, {0, 2}, 1);
    statistics.add(std::as_bytes(std::span(values)), 7);
    check(statistics.count == 6 && statistics.finite() == 3 && statistics.nan == 1, "counts");
    check(statistics.positive_infinite == 1 && statistics.negative_infinite == 1, "infinities");
    check(statistics.zeros == 1 && statistics.above == 2 && statistics.below == 1, "bins");
    check(statistics.largest()[0].position == 12, "a position");
}

void test_integers_are_exact() {
    const std::vector<std::int64_t> values = {INT64_MIN, INT64_MAX, 0, INT64_MIN + 1};
    Statistics statistics(Element::int64, {}, 4);
    statistics.add(std::as_bytes(std::span(values)), 0);
    check(statistics.least.whole == INT64_MIN && statistics.greatest.whole == INT64_MAX, "ends");
    const auto largest = statistics.largest();
    check(statistics.value_of(largest[0]).whole == INT64_MIN, "the largest");
    check(largest[1].position == 1 && largest[2].position == 3, "equal ones in order");
}

void test_merging_equals_adding() {
    const auto values = some(3 * 2048);
    const auto bytes = std::as_bytes(std::span(values));
    Statistics whole(Element::float64, {}, 5);
    whole.add(bytes, 0);
    Statistics joined(Element::float64, {}, 5);
    for (std::size_t part = 0; part < 3; ++part) {
        Statistics one(Element::float64, {}, 5);
        one.add(bytes.subspan(part * 2048 * 8, 2048 * 8), static_cast<std::int64_t>(part) * 2048);
        joined.merge(one);
    }
    check(joined.mean() == whole.mean() && joined.deviation() == whole.deviation(), "moments");
    for (std::size_t i = 0; i < 5; ++i)
        check(joined.largest()[i].position == whole.largest()[i].position, "largest");
    check_throws<std::invalid_argument>([&] { joined.merge(Statistics(Element::float64, {}, 4)); },
                                        "other arguments");
}

void test_refusals() {
    check_throws<std::invalid_argument>([] { Statistics(Element::int8, {1}, 0); }, "one edge");
    check_throws<std::invalid_argument>([] { Statistics(Element::int8, {1, 1}, 0); }, "ascending");
    check_throws<std::invalid_argument>([] { Statistics(Element::int8, {}, -1); }, "negative");
}

}  // namespace

int main() {
    test_against_long_double();
    test_what_is_not_finite();
    test_integers_are_exact();
    test_merging_equals_adding();
    test_refusals();
}
