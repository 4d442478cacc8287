#include "windeck/statistics.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "element_codes.hpp"

namespace windeck {
namespace {

constexpr std::size_t block_size = 2048;
constexpr std::size_t lanes = 8;  // sums at once; the order of additions is fixed

/// Whether a comes before b among the largest.
bool before(const Largest& a, const Largest& b) {
    return a.magnitude != b.magnitude ? a.magnitude > b.magnitude : a.position < b.position;
}

template <typename Term>
double sum_of(std::size_t size, Term term) {
    double sums[lanes] = {};
    std::size_t i = 0;
    for (; i + lanes <= size; i += lanes)
        for (std::size_t lane = 0; lane < lanes; ++lane)
            sums[lane] += term(i + lane);
    for (std::size_t lane = 0; i < size; ++i, ++lane)
        sums[lane] += term(i);
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) +
           ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

/// sum + value; what rounding took is added to `lost` (Neumaier 1974).
void add_exactly(double& sum, double& lost, double value) {
    const double total = sum + value;
    const bool larger = std::abs(sum) >= std::abs(value);
    lost += larger ? (sum - total) + value : (value - total) + sum;
    sum = total;
}

template <typename Part>
double modulus(Part real, Part imaginary) {
    if (std::isnan(real) || std::isnan(imaginary)) return std::numeric_limits<double>::quiet_NaN();
    return std::hypot(static_cast<double>(real), static_cast<double>(imaginary));
}

}  // namespace

Statistics::Statistics(Element element, std::vector<double> edges, std::int64_t largest)
    : element_(element), edges_(std::move(edges)), wanted_(static_cast<std::size_t>(largest)) {
    if (largest < 0) throw std::invalid_argument("largest is negative");
    if (edges_.empty()) return;
    if (edges_.size() == 1) throw std::invalid_argument("one edge bounds no bin");
    for (std::size_t i = 0; i < edges_.size(); ++i) {
        if (!std::isfinite(edges_[i]) || (i > 0 && edges_[i] <= edges_[i - 1]))
            throw std::invalid_argument("the edges are not finite and strictly ascending");
    }
    bins_.resize(edges_.size() - 1);
    const double width = (edges_.back() - edges_.front()) / static_cast<double>(bins_.size());
    if (!std::isfinite(width)) return;
    for (std::size_t i = 1; i < edges_.size(); ++i) {
        const double here = edges_[i] - edges_[i - 1];
        if (here < 0.9 * width || here > 1.1 * width) return;
    }
    if (std::isfinite(1 / width)) bins_per_unit_ = 1 / width;
}

void Statistics::add(std::span<const std::byte> bytes, std::int64_t base) {
    switch (element_) {
        case Element::int8:
            return add_whole<std::int8_t>(bytes, base);
        case Element::int16:
            return add_whole<std::int16_t>(bytes, base);
        case Element::int32:
            return add_whole<std::int32_t>(bytes, base);
        case Element::int64:
            return add_whole<std::int64_t>(bytes, base);
        case Element::uint8:
            return add_whole<std::uint8_t>(bytes, base);
        case Element::uint16:
            return add_whole<std::uint16_t>(bytes, base);
        case Element::uint32:
            return add_whole<std::uint32_t>(bytes, base);
        case Element::uint64:
            return add_whole<std::uint64_t>(bytes, base);
        case Element::boolean:
            return add_whole<bool>(bytes, base);
        default:
            return add_real(bytes, base);
    }
}

template <typename Raw>
void Statistics::add_whole(std::span<const std::byte> bytes, std::int64_t base) {
    using Wide = std::conditional_t<std::is_signed_v<Raw>, std::int64_t, std::uint64_t>;
    const std::size_t total = bytes.size() / sizeof(Raw);
    double values[block_size];
    for (std::size_t first = 0; first < total; first += block_size) {
        const std::size_t size = std::min(block_size, total - first);
        Wide low = std::numeric_limits<Wide>::max();
        Wide high = std::numeric_limits<Wide>::min();
        for (std::size_t i = 0; i < size; ++i) {
            Wide value = 0;
            if constexpr (std::is_same_v<Raw, bool>) {
                value =
                    bytes[first + i] != std::byte{0};  // a bool of other bits would be undefined
            } else {
                value = codes::load<Raw>(bytes.data(), first + i);
            }
            low = std::min(low, value);
            high = std::max(high, value);
            zeros += value == 0;
            values[i] = static_cast<double>(value);
            if (wanted_ == 0) continue;
            const auto word = static_cast<std::uint64_t>(value);
            const bool negative = std::is_signed_v<Wide> && value < 0;
            const std::uint64_t magnitude = negative ? 0 - word : word;
            if (heap_.size() < wanted_ || magnitude >= heap_.front().magnitude)
                offer({magnitude, base + static_cast<std::int64_t>(first + i), negative});
        }
        if constexpr (std::is_signed_v<Wide>) {
            least.whole = std::min(least.whole, low);
            greatest.whole = std::max(greatest.whole, high);
        } else {
            least.natural = std::min(least.natural, low);
            greatest.natural = std::max(greatest.natural, high);
        }
        add_moments(values, size);
        add_bins(values, size);
    }
    count += static_cast<std::int64_t>(total);
}

void Statistics::add_real(std::span<const std::byte> bytes, std::int64_t base) {
    const std::size_t total = bytes.size() / size_of(element_);
    double values[block_size];
    for (std::size_t first = 0; first < total; first += block_size) {
        const std::size_t size = std::min(block_size, total - first);
        decode(bytes.data(), first, size, values);
        if (wanted_ != 0) {
            for (std::size_t i = 0; i < size; ++i) {
                const auto bits = std::bit_cast<std::uint64_t>(values[i]);
                const std::uint64_t magnitude = bits << 1 >> 1;
                if (magnitude >= 0x7ff0000000000000) continue;
                if (heap_.size() < wanted_ || magnitude >= heap_.front().magnitude) {
                    const auto position = base + static_cast<std::int64_t>(first + i);
                    offer({magnitude, position, bits >> 63 != 0});
                }
            }
        }
        const std::size_t finite = keep_finite(values, size);
        double low = least.real;
        double high = greatest.real;
        std::int64_t none = 0;
        for (std::size_t i = 0; i < finite; ++i) {
            low = values[i] < low ? values[i] : low;
            high = values[i] > high ? values[i] : high;
            none += values[i] == 0;
        }
        least.real = low;
        greatest.real = high;
        zeros += none;
        add_moments(values, finite);
        add_bins(values, finite);
    }
    count += static_cast<std::int64_t>(total);
}

void Statistics::decode(const std::byte* data, std::size_t first, std::size_t size,
                        double* values) const {
    using codes::load;
    const auto each = [&](auto value_at) {
        for (std::size_t i = 0; i < size; ++i)
            values[i] = value_at(first + i);
    };
    switch (element_) {
        case Element::complex32:
            return each([&](std::size_t i) {
                const auto& table = halves();
                return modulus(table[load<std::uint16_t>(data, 2 * i)],
                               table[load<std::uint16_t>(data, 2 * i + 1)]);
            });
        case Element::complex64:
            return each([&](std::size_t i) {
                return modulus(load<float>(data, 2 * i), load<float>(data, 2 * i + 1));
            });
        case Element::complex128:
            return each([&](std::size_t i) {
                return modulus(load<double>(data, 2 * i), load<double>(data, 2 * i + 1));
            });
        default:
            return read_reals(element_, data + first * size_of(element_), size, values);
    }
}

/// Counts what is not finite and moves the rest together; how many these are.
std::size_t Statistics::keep_finite(double* values, std::size_t size) {
    if (sum_of(size, [&](std::size_t i) { return values[i] * 0.0; }) == 0) return size;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size; ++i) {
        const double value = values[i];
        if (std::isfinite(value)) {
            values[kept++] = value;
        } else if (std::isnan(value)) {
            ++nan;
        } else {
            ++(value > 0 ? positive_infinite : negative_infinite);
            if (!edges_.empty()) ++(value > 0 ? above : below);
        }
    }
    return kept;
}

void Statistics::add_moments(const double* values, std::size_t size) {
    if (size == 0) return;
    const auto number = static_cast<double>(size);
    double mean = sum_of(size, [&](std::size_t i) { return values[i]; }) / number;
    if (!std::isfinite(mean))
        mean = sum_of(size, [&](std::size_t i) { return values[i] / number; });
    const double squares =
        sum_of(size, [&](std::size_t i) { return (values[i] - mean) * (values[i] - mean); });
    // The mean was rounded: what the deviations from it sum to says by how much.
    const double rest = sum_of(size, [&](std::size_t i) { return values[i] - mean; });
    join(mean, rest / number, squares - rest * rest / number, static_cast<std::int64_t>(size));
}

void Statistics::join(double mean, double rest, double squares, std::int64_t size) {
    if (!std::isfinite(rest)) rest = 0;
    const auto mine = static_cast<double>(finite_);
    const auto other = static_cast<double>(size);
    finite_ += size;
    if (mine == 0) {
        mean_ = mean;
        rest_ = rest;
        squares_ = squares;
        return;
    }
    const double apart = (mean - mean_) + (rest - rest_);
    squares_ += squares + apart * apart * (mine / (mine + other) * other);
    if (std::isfinite(apart)) {
        add_exactly(mean_, rest_, apart * (other / (mine + other)));
        const double whole = mean_ + rest_;
        rest_ -= whole - mean_;
        mean_ = whole;
    } else {
        mean_ = mean_ * (mine / (mine + other)) + mean * (other / (mine + other));
    }
}

void Statistics::add_bins(const double* values, std::size_t size) {
    if (edges_.empty()) return;
    const double first = edges_.front();
    const double last = edges_.back();
    const auto top = bins_.size() - 1;
    for (std::size_t i = 0; i < size; ++i) {
        const double value = values[i];
        if (value < first || value > last) {
            ++(value < first ? below : above);
            continue;
        }
        std::size_t bin = 0;
        if (bins_per_unit_ > 0) {
            bin = std::min(top, static_cast<std::size_t>((value - first) * bins_per_unit_));
            while (value < edges_[bin])
                --bin;
            while (bin < top && value >= edges_[bin + 1])
                ++bin;
        } else {
            const auto after = std::upper_bound(edges_.begin(), edges_.end(), value);
            bin = std::min(top, static_cast<std::size_t>(after - edges_.begin()) - 1);
        }
        ++bins_[bin];
    }
}

void Statistics::offer(Largest candidate) {
    if (heap_.size() == wanted_) {
        if (!before(candidate, heap_.front())) return;
        std::ranges::pop_heap(heap_, before);
        heap_.pop_back();
    }
    heap_.push_back(candidate);
    std::ranges::push_heap(heap_, before);
}

void Statistics::merge(const Statistics& other) {
    if (other.element_ != element_ || other.edges_ != edges_ || other.wanted_ != wanted_)
        throw std::invalid_argument("the other statistics were made with other arguments");
    if (other.finite_ > 0) join(other.mean_, other.rest_, other.squares_, other.finite_);
    count += other.count;
    nan += other.nan;
    positive_infinite += other.positive_infinite;
    negative_infinite += other.negative_infinite;
    zeros += other.zeros;
    below += other.below;
    above += other.above;
    for (std::size_t i = 0; i < bins_.size(); ++i)
        bins_[i] += other.bins_[i];
    least.real = std::min(least.real, other.least.real);
    least.whole = std::min(least.whole, other.least.whole);
    least.natural = std::min(least.natural, other.least.natural);
    greatest.real = std::max(greatest.real, other.greatest.real);
    greatest.whole = std::max(greatest.whole, other.greatest.whole);
    greatest.natural = std::max(greatest.natural, other.greatest.natural);
    for (const Largest& candidate : other.heap_)
        offer(candidate);
}

double Statistics::mean() const {
    return mean_ + rest_;
}

double Statistics::deviation() const {
    if (!std::isfinite(squares_)) return std::numeric_limits<double>::infinity();
    return std::sqrt(std::max(0.0, squares_) / static_cast<double>(finite_));
}

std::vector<Largest> Statistics::largest() const {
    std::vector<Largest> found = heap_;
    std::ranges::sort(found, before);
    return found;
}

Scalar Statistics::value_of(const Largest& found) const {
    const double real = std::bit_cast<double>(found.magnitude);
    const std::uint64_t word = found.negative ? 0 - found.magnitude : found.magnitude;
    return {found.negative ? -real : real, static_cast<std::int64_t>(word), found.magnitude};
}

}  // namespace windeck
