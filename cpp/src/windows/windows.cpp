#include "windeck/windows/windows.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

namespace windeck {
namespace {

constexpr std::int64_t bits_per_block = 512;
constexpr std::int64_t words_per_block = bits_per_block / 64;

std::size_t at(std::int64_t position) {
    return static_cast<std::size_t>(position);
}

/// The position of the `rank`-th one in a word that has more than `rank` ones.
int select_in_word(std::uint64_t word, std::int64_t rank) {
    for (; rank > 0; --rank)
        word &= word - 1;
    return std::countr_zero(word);
}

std::int64_t last_row(std::int64_t first, std::int64_t count, std::int64_t stride,
                      std::int64_t window_run) {
    std::int64_t reach = 0;
    std::int64_t last = 0;
    if (__builtin_mul_overflow(count - 1, stride, &reach) ||
        __builtin_add_overflow(first, reach, &last)) {
        throw std::overflow_error("window run " + std::to_string(window_run) + " has " +
                                  std::to_string(count) + " windows from row " +
                                  std::to_string(first) + " with stride " + std::to_string(stride) +
                                  ", which leaves the 64-bit integers");
    }
    return last;
}

}  // namespace

BitSelect::BitSelect(std::span<const std::uint8_t> bytes, std::int64_t size) {
    const std::int64_t bit_blocks = size / bits_per_block + 1;
    words_.assign(at(bit_blocks * words_per_block), 0);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        words_[i / 8] |= std::uint64_t{bytes[i]} << (i % 8 * 8);
    }
    // Bits after the end do not count.
    const std::size_t last = at(size / 64);
    words_[last] &= (std::uint64_t{1} << (size % 64)) - 1;
    std::fill(words_.begin() + static_cast<std::ptrdiff_t>(last) + 1, words_.end(), 0U);

    std::vector<std::int64_t> counts(at(bit_blocks), 0);
    for (std::size_t i = 0; i < words_.size(); ++i) {
        counts[i / words_per_block] += std::popcount(words_[i]);
    }
    ranks_ = Cumulative(counts);
}

bool BitSelect::test(std::int64_t position) const noexcept {
    return (words_[at(position / 64)] >> (position % 64) & 1) != 0;
}

std::int64_t BitSelect::rank(std::int64_t position) const noexcept {
    const std::int64_t bit_block = position / bits_per_block;
    std::int64_t ones = ranks_.before(bit_block);
    for (std::int64_t i = bit_block * words_per_block; i < position / 64; ++i) {
        ones += std::popcount(words_[at(i)]);
    }
    const std::uint64_t below = (std::uint64_t{1} << (position % 64)) - 1;
    return ones + std::popcount(words_[at(position / 64)] & below);
}

std::int64_t BitSelect::select(std::int64_t rank) const noexcept {
    const std::int64_t bit_block = ranks_.find(rank);
    rank -= ranks_.before(bit_block);
    std::int64_t word = bit_block * words_per_block;
    for (;; ++word) {
        const int ones = std::popcount(words_[at(word)]);
        if (rank < ones) return word * 64 + select_in_word(words_[at(word)], rank);
        rank -= ones;
    }
}

WindowIndex::WindowIndex(std::span<const std::int64_t> first, std::span<const std::int64_t> count,
                         std::int64_t stride, std::span<const std::int64_t> series,
                         std::optional<std::span<const std::uint8_t>> keep)
    : stride_(stride), by_window_run_(series.empty()) {
    if (stride < 1) {
        throw std::invalid_argument("stride is " + std::to_string(stride) + ", expected 1 or more");
    }
    if (first.size() != count.size() || (!by_window_run_ && series.size() != first.size())) {
        throw std::invalid_argument("first, count and series have " + std::to_string(first.size()) +
                                    ", " + std::to_string(count.size()) + " and " +
                                    std::to_string(by_window_run_ ? first.size() : series.size()) +
                                    " entries, expected one each for every window run");
    }
    min_row_ = std::numeric_limits<std::int64_t>::max();
    max_row_ = std::numeric_limits<std::int64_t>::min();
    window_runs_.reserve(first.size());
    for (std::size_t r = 0; r < first.size(); ++r) {
        const auto number = static_cast<std::int64_t>(r);
        const WindowRun window_run{by_window_run_ ? number : series[r], first[r], count[r]};
        if (window_run.count < 0 || window_run.series < 0) {
            throw std::invalid_argument("window run " + std::to_string(r) + " has count " +
                                        std::to_string(window_run.count) + " and series " +
                                        std::to_string(window_run.series) + ", expected 0 or more");
        }
        window_runs_.push_back(window_run);
        if (window_run.count == 0) continue;
        min_row_ = std::min(min_row_, window_run.first);
        max_row_ = std::max(max_row_, last_row(window_run.first, window_run.count, stride, number));
        max_series_ = std::max(max_series_, window_run.series);
    }
    if (max_series_ < 0) min_row_ = max_row_ = 0;
    candidates_ = Cumulative(count);
    size_ = candidates_.total();
    if (!by_window_run_) sort_window_runs();
    if (!keep) return;
    const std::int64_t bytes = size_ / 8 + (size_ % 8 != 0 ? 1 : 0);
    if (static_cast<std::int64_t>(keep->size()) != bytes) {
        throw std::invalid_argument("keep has " + std::to_string(keep->size()) +
                                    " bytes, expected " + std::to_string(bytes) + " for " +
                                    std::to_string(size_) + " candidate windows");
    }
    keep_.emplace(*keep, size_);
    size_ = keep_->count();
}

std::int64_t WindowIndex::phase(std::int64_t row) const noexcept {
    const std::int64_t remainder = row % stride_;
    return remainder < 0 ? remainder + stride_ : remainder;
}

/// Window runs that could hold one row are neighbours in the order of (series, phase, first); in it
/// a row has one window run at most, since none may repeat a window of another.
void WindowIndex::sort_window_runs() {
    const auto before = [this](std::int64_t a, std::int64_t b) {
        return precedes(a, window_runs_[at(b)].series, window_runs_[at(b)].first);
    };
    for (std::int64_t r = 0; r < static_cast<std::int64_t>(window_runs_.size()); ++r) {
        if (window_runs_[at(r)].count > 0) order_.push_back(r);
    }
    if (!std::ranges::is_sorted(order_, before)) std::ranges::sort(order_, before);
    for (std::size_t i = 1; i < order_.size(); ++i) {
        const WindowRun& a = window_runs_[at(order_[i - 1])];
        const WindowRun& b = window_runs_[at(order_[i])];
        if (a.series != b.series || phase(a.first) != phase(b.first)) continue;
        if (b.first > a.first + (a.count - 1) * stride_) continue;
        const auto [low, high] = std::minmax(order_[i - 1], order_[i]);
        throw std::invalid_argument("window run " + std::to_string(high) +
                                    " repeats the window at row " + std::to_string(b.first) +
                                    " of series " + std::to_string(b.series) + " that window run " +
                                    std::to_string(low) + " holds, expected every window once");
    }
}

bool WindowIndex::precedes(std::int64_t window_run, std::int64_t series,
                           std::int64_t row) const noexcept {
    const WindowRun& a = window_runs_[at(window_run)];
    if (a.series != series) return a.series < series;
    if (phase(a.first) != phase(row)) return phase(a.first) < phase(row);
    return a.first < row;
}

bool WindowIndex::within(std::span<const std::int64_t> bounds, std::int64_t offset,
                         std::int64_t reach) const noexcept {
    return std::ranges::all_of(window_runs_, [&](const WindowRun& window_run) {
        if (window_run.count == 0) return true;
        const std::int64_t first = window_run.first + offset;
        const std::int64_t last = first + (window_run.count - 1) * stride_ + reach;
        return first >= bounds[at(window_run.series)] && last < bounds[at(window_run.series) + 1];
    });
}

void WindowIndex::check(std::span<const std::int64_t> indices) const {
    for (const std::int64_t index : indices) {
        // A negative one is above every size.
        if (static_cast<std::uint64_t>(index) < static_cast<std::uint64_t>(size_)) continue;
        throw std::out_of_range("index " + std::to_string(index) + " is out of range for " +
                                std::to_string(size_) + " windows");
    }
}

void WindowIndex::locate(std::span<const std::int64_t> indices, std::int64_t* series,
                         std::int64_t* rows) const noexcept {
    if (window_runs_.size() == 1 && !keep_) {
        // Without the search for a window run, which takes as long as a short window is copied.
        const auto [number, first, count] = window_runs_.front();
        const std::int64_t stride = stride_;
        for (std::size_t i = 0; i < indices.size(); ++i) {
            series[i] = number;
            rows[i] = first + indices[i] * stride;
        }
        return;
    }
    for (std::size_t i = 0; i < indices.size(); ++i) {
        const std::int64_t candidate = keep_ ? keep_->select(indices[i]) : indices[i];
        const std::int64_t r = candidates_.find(candidate);
        series[i] = window_runs_[at(r)].series;
        rows[i] = window_runs_[at(r)].first + (candidate - candidates_.before(r)) * stride_;
    }
}

void WindowIndex::slice(std::int64_t start, std::int64_t count, std::int64_t* series,
                        std::int64_t* rows) const noexcept {
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t index = start + i;
        locate({&index, 1}, series + i, rows + i);
    }
}

std::int64_t WindowIndex::window_run_of(std::int64_t series, std::int64_t row) const noexcept {
    if (by_window_run_)
        return series < static_cast<std::int64_t>(window_runs_.size()) ? series : -1;
    // The last window run that does not start after the row.
    const auto after = std::ranges::partition_point(order_, [&](std::int64_t window_run) {
        return precedes(window_run, series, row) ||
               (window_runs_[at(window_run)].series == series &&
                window_runs_[at(window_run)].first == row);
    });
    return after == order_.begin() ? -1 : *(after - 1);
}

std::int64_t WindowIndex::index_of(std::int64_t series, std::int64_t row) const noexcept {
    if (series < 0 || size_ == 0) return -1;
    const std::int64_t r = window_run_of(series, row);
    if (r < 0) return -1;
    const WindowRun& window_run = window_runs_[at(r)];
    std::int64_t distance = 0;
    if (window_run.series != series || row < window_run.first ||
        __builtin_sub_overflow(row, window_run.first, &distance) || distance % stride_ != 0 ||
        distance / stride_ >= window_run.count) {
        return -1;
    }
    const std::int64_t candidate = candidates_.before(r) + distance / stride_;
    if (!keep_) return candidate;
    return keep_->test(candidate) ? keep_->rank(candidate) : -1;
}

}  // namespace windeck
