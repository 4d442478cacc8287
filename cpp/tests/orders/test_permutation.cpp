#include <bit>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "windeck/base/hash.hpp"
#include "windeck/orders/permutation.hpp"

namespace windeck {
namespace {

/// A direct implementation of the definition in permutation.hpp, with 128-bit products.
std::uint64_t model(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch,
                    std::uint64_t position) {
    std::uint64_t state = 0;
    for (const std::uint64_t word : {std::uint64_t{1}, size, seed, epoch}) {
        state = mix(state ^ mix(word + golden));
    }
    const unsigned k = size <= 256 ? 8 : static_cast<unsigned>(std::bit_width(size - 1));
    const std::uint64_t domain = std::uint64_t{1} << k;
    const unsigned h = (k + 1) / 2;
    std::uint64_t x = position;
    do {
        for (std::uint64_t r = 0; r < 6; ++r) {
            const std::uint64_t a = key(state, 2 * r) % domain / 8 * 8 + 5;
            const std::uint64_t c = key(state, 2 * r + 1) % domain / 2 * 2 + 1;
            x ^= x >> h;
            x = (a * x + c) % domain;
        }
        x ^= x >> h;
        x = (x + key(state, 12)) % domain;
    } while (x >= size);
    return x;
}

std::vector<std::int64_t> slice(const Permutation& order, std::uint64_t start, std::size_t count) {
    std::vector<std::int64_t> out(count);
    order.slice(start, out);
    return out;
}

void is_a_bijection_with_an_exact_inverse(std::uint64_t size) {
    const Permutation order(size, 7, size);
    const std::vector<std::int64_t> samples = slice(order, 0, size);
    std::vector<bool> seen(size);
    for (const std::int64_t sample : samples) {
        const auto s = static_cast<std::uint64_t>(sample);
        check(s < size, "inside");
        check(!seen[s], "once");
        seen[s] = true;
    }
    std::vector<std::int64_t> positions(size);
    order.index_of(samples, positions);
    for (std::uint64_t p = 0; p < size; ++p) {
        check(positions[p] == static_cast<std::int64_t>(p), "the inverse");
    }
}

void equals_the_model(std::uint64_t size, std::uint64_t start, std::size_t count) {
    const Permutation order(size, 42, 3);
    const std::vector<std::int64_t> bulk = slice(order, start, count);
    std::vector<std::int64_t> positions(count), taken(count), back(count);
    std::iota(positions.begin(), positions.end(), static_cast<std::int64_t>(start));
    order.take(positions, taken);
    order.index_of(bulk, back);
    check(taken == bulk, "take is slice");
    check(back == positions, "the inverse in bulk");
    for (std::size_t j = 0; j < count; ++j) {
        const std::uint64_t sample = model(size, 42, 3, start + j);
        check(static_cast<std::uint64_t>(bulk[j]) == sample, "the model in bulk");
        check(order.at(start + j) == sample, "the model one by one");
        check(order.index_of(sample) == start + j, "the inverse one by one");
    }
}

/// A few positions of each of many orders.
void many_orders_equal_the_model() {
    std::vector<std::int64_t> sizes, epochs, positions;
    std::vector<std::uint64_t> seeds;
    for (std::int64_t size = 1; size < 600; ++size) {
        for (const std::int64_t position : {std::int64_t{0}, size / 2, size - 1}) {
            sizes.push_back(size);
            positions.push_back(position);
            epochs.push_back(size % 7);
            seeds.push_back(std::uint64_t(size) * 0x9E3779B97F4A7C15ULL);
        }
    }
    std::vector<std::int64_t> out(sizes.size());
    permute_each(sizes, seeds, epochs, positions, out);
    for (std::size_t j = 0; j < out.size(); ++j) {
        const auto position = static_cast<std::uint64_t>(positions[j]);
        const auto wanted = model(static_cast<std::uint64_t>(sizes[j]), seeds[j],
                                  static_cast<std::uint64_t>(epochs[j]), position);
        check(static_cast<std::uint64_t>(out[j]) == wanted, "an order among many");
    }
}

}  // namespace
}  // namespace windeck

int main() {
    using namespace windeck;
    many_orders_equal_the_model();
    for (std::uint64_t size = 1; size <= 1100; ++size)
        is_a_bijection_with_an_exact_inverse(size);
    for (const std::uint64_t size : {4095, 4096, 4097, 65535, 65536, 65537, 262145}) {
        is_a_bijection_with_an_exact_inverse(size);
    }
    for (unsigned k = 0; k < 63; ++k) {
        const std::uint64_t power = std::uint64_t{1} << k;
        for (const std::uint64_t size : {power - 1, power, power + 1}) {
            if (size == 0 || size > Permutation::max_size) continue;
            equals_the_model(size, 0, size < 300 ? size : 300);
            if (size > 9000) equals_the_model(size, size - 2077, 2077);
        }
    }
    equals_the_model(Permutation::max_size, Permutation::max_size - 5, 5);
    check(slice(Permutation(1000), 17, 0).empty(), "an empty slice");

    check(Permutation(10, 42, 1) == Permutation(10, 42, 1));
    check(!(Permutation(10, 42, 1) == Permutation(10, 43, 0)));
    check(slice(Permutation(1000, 42, 1), 0, 1000) != slice(Permutation(1000, 43, 0), 0, 1000));
    check_throws<std::invalid_argument>([] { Permutation(0); }, "size is 0, expected");
    check_throws<std::invalid_argument>([] { Permutation(Permutation::max_size + 1); },
                                        "expected an integer from 1 to 2^63 - 1");
}
