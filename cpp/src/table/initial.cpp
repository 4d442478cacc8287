#include "windeck/table/initial.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "windeck/base/hash.hpp"

namespace windeck {
namespace {

/// The natural logarithm of a positive normal number, to some 1e-16, in IEEE operations only.
double natural_log(double x) {
    constexpr double ln2 = 0.693147180559945309417;
    constexpr double sqrt2 = 1.41421356237309504880;
    const auto bits = std::bit_cast<std::uint64_t>(x);
    auto exponent = static_cast<double>(static_cast<int>(bits >> 52) - 1023);
    double m = std::bit_cast<double>((bits & 0x000fffffffffffff) | 0x3ff0000000000000);
    if (m > sqrt2) {
        m = m * 0.5;
        exponent = exponent + 1;
    }
    // ln m = 2 artanh s, and |s| < 0.172: eleven terms of the series.
    const double s = (m - 1) / (m + 1);
    const double square = s * s;
    double sum = 1.0 / 21;
    for (int odd = 19; odd > 0; odd -= 2)
        sum = sum * square + 1.0 / odd;
    return exponent * ln2 + 2 * s * sum;
}

double central(double q) {
    const double r = 0.180625 - q * q;
    const double above = ((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179;
    const double below = ((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0;
    return q * above / below;
}

double tail(double r) {
    if (r <= 5) {
        r = r - 1.6;
        const double above =
            ((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777;
        return above / ((0.12021132975 * r + 0.73700164250) * r + 1.0);
    }
    r = r - 5;
    const double above =
        ((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150;
    return above / ((0.012258202635 * r + 0.24197894225) * r + 1.0);
}

double unit(std::uint64_t word) {
    return (static_cast<double>(word >> 11) + 0.5) * 0x1p-53;
}

}  // namespace

double normal_quantile(double u) noexcept {
    const double q = u - 0.5;
    if (q >= -0.425 && q <= 0.425) return central(q);
    const double distance = tail(std::sqrt(-natural_log(q < 0 ? u : 1 - u)));
    return q < 0 ? -distance : distance;
}

InitialValues::InitialValues(Initializer kind, double scale, std::uint64_t seed)
    : kind_(kind), scale_(scale), seeded_(absorb(absorb(0, initial_tag), seed)) {}

void InitialValues::write(std::int64_t id, std::span<float> values,
                          std::size_t first) const noexcept {
    if (kind_ == Initializer::zeros) {
        std::ranges::fill(values, 0.0F);
        return;
    }
    const std::uint64_t state = absorb(seeded_, static_cast<std::uint64_t>(id));
    for (std::size_t j = 0; j < values.size(); ++j) {
        const double u = unit(key(state, first + j));
        const double x = kind_ == Initializer::normal ? normal_quantile(u) : 2 * u - 1;
        values[j] = static_cast<float>(scale_ * x);
    }
}

}  // namespace windeck
