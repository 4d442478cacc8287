#include <limits>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "numbers.hpp"
#include "windeck/windows/windows.hpp"

using namespace windeck;

namespace {

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

/// All windows, one by one.
struct Listed {
    Numbers series;
    Numbers rows;
};

Listed list(const Numbers& first, const Numbers& count, std::int64_t stride, const Numbers& series,
            const std::vector<std::uint8_t>* keep) {
    Listed out;
    std::size_t candidate = 0;
    for (std::size_t r = 0; r < first.size(); ++r) {
        for (std::int64_t j = 0; j < count[r]; ++j, ++candidate) {
            if (keep != nullptr && ((*keep)[candidate / 8] >> (candidate % 8) & 1) == 0) continue;
            out.series.push_back(series.empty() ? static_cast<std::int64_t>(r) : series[r]);
            out.rows.push_back(first[r] + j * stride);
        }
    }
    return out;
}

void equals(const WindowIndex& index, const Listed& expected) {
    const std::size_t n = expected.rows.size();
    check(index.size() == static_cast<std::int64_t>(n), "size");
    Numbers all(n);
    for (std::size_t i = 0; i < n; ++i)
        all[i] = static_cast<std::int64_t>(i);
    Numbers series(n);
    Numbers rows(n);
    index.check(all);
    index.locate(all, series.data(), rows.data());
    check(series == expected.series && rows == expected.rows, "locate");
    index.slice(0, index.size(), series.data(), rows.data());
    check(series == expected.series && rows == expected.rows, "slice");
    for (std::size_t i = 0; i < n; ++i) {
        check(index.index_of(series[i], rows[i]) == all[i], "index_of");
    }
}

void random_configurations() {
    for (int round = 0; round < 2000; ++round) {
        const auto window_runs = at(draw(0, 12));
        const std::int64_t stride = draw(1, 5);
        Numbers first;
        Numbers count;
        Numbers series;
        std::int64_t row = draw(-20, 20);
        std::int64_t total = 0;
        for (std::size_t r = 0; r < window_runs; ++r) {
            first.push_back(row);
            count.push_back(draw(0, 3) == 0 ? 0 : draw(1, 400));
            total += count.back();
            row += count.back() * stride + draw(0, 30);
            series.push_back(series.empty() ? 0 : series.back() + draw(0, 1));
        }
        if (draw(0, 1) == 0) series.clear();
        std::vector<std::uint8_t> keep(static_cast<std::size_t>((total + 7) / 8));
        const std::int64_t rarity = draw(0, 3);
        for (auto& byte : keep) {
            byte = static_cast<std::uint8_t>(draw(0, rarity) == 0 ? draw(0, 255) : 0);
        }
        equals(WindowIndex(first, count, stride, series),
               list(first, count, stride, series, nullptr));
        equals(WindowIndex(first, count, stride, series, keep),
               list(first, count, stride, series, &keep));
    }
}

void interleaved_window_runs_of_one_series() {
    const Numbers first{1, 0, 100};
    const Numbers count{10, 10, 3};
    const Numbers series{7, 7, 2};
    const WindowIndex index(first, count, 2, series);
    equals(index, list(first, count, 2, series, nullptr));
    check(index.index_of(7, 20) == -1 && index.index_of(2, 101) == -1, "no such window");
    check(index.index_of(-1, 0) == -1 && index.index_of(3, 0) == -1, "no such series");
    check(index.max_series() == 7 && index.min_row() == 0 && index.max_row() == 104, "extremes");
}

void rows_within_series() {
    const Numbers bounds{0, 20, 20, 50};
    const Numbers first{2, 20, 30};
    const Numbers count{3, 0, 5};
    const WindowIndex index(first, count, 4);  // rows 2, 6, 10 and 30, 34, ... 46
    check(index.within(bounds, -2, 5), "from row 0 to 49");
    check(!index.within(bounds, -3, 5), "row -1");
    check(!index.within(bounds, -2, 6), "row 50");
    check(WindowIndex(first, count, 3).within(bounds, -2, 9), "a smaller stride");
    check(WindowIndex(Numbers{}, Numbers{}, 1).within(bounds, -9, 99), "no windows");
}

void large_numbers() {
    const Numbers first{-5, 10};
    const Numbers count{largest / 4, largest / 4};
    const WindowIndex index(first, count, 2);
    const Numbers wanted{index.size() - 1, 0, largest / 4};
    Numbers series(3);
    Numbers rows(3);
    index.locate(wanted, series.data(), rows.data());
    check(series == Numbers{1, 0, 1}, "series");
    check(rows == Numbers{10 + (largest / 4 - 1) * 2, -5, 10}, "rows");
    check(index.index_of(1, rows[0]) == wanted[0], "the inverse");
    check(index.index_of(0, std::numeric_limits<std::int64_t>::min()) == -1, "far away");
}

void refuses() {
    const Numbers none;
    const Numbers zero{0};
    const Numbers ten{10};
    const Numbers twice{0, 4};
    const auto index = [](const Numbers& first, const Numbers& count, std::int64_t stride,
                          const Numbers& series = {}) {
        return [=] { WindowIndex(first, count, stride, series); };
    };
    using std::invalid_argument;
    check_throws<invalid_argument>(index(zero, ten, 0), "stride is 0, expected 1 or more");
    check_throws<invalid_argument>(index(zero, none, 1), "one each for every window run");
    check_throws<invalid_argument>(index(zero, {-1}, 1), "window run 0 has count -1");
    check_throws<invalid_argument>(index(zero, ten, 1, {-2}), "series -2");
    check_throws<invalid_argument>(
        index(twice, {3, 2}, 2, {1, 1}),
        "window run 1 repeats the window at row 4 of series 1 that window run 0");
    check_throws<std::overflow_error>(index({largest - 1}, ten, 1), "leaves the 64-bit integers");
    check_throws<std::overflow_error>(index(zero, {largest}, 2), "leaves the 64-bit integers");
    check_throws<std::overflow_error>(index(twice, {largest - 9, largest - 9}, 1), "2^63 - 1");
    const std::vector<std::uint8_t> short_bitmap(1);
    check_throws<invalid_argument>([&] { WindowIndex(zero, ten, 1, {}, short_bitmap); },
                                   "keep has 1 bytes, expected 2 for 10 candidate windows");
    check_throws<std::out_of_range>([&] { WindowIndex(zero, ten, 1).check(ten); },
                                    "index 10 is out of range for 10 windows");
    check(WindowIndex(none, none, 1).size() == 0, "no window runs, no windows");
}

}  // namespace

int main() {
    random_configurations();
    interleaved_window_runs_of_one_series();
    rows_within_series();
    large_numbers();
    refuses();
}
