#include "windeck/orders/permutation.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "orders/kernels/permute.hpp"
#include "windeck/base/dispatch.hpp"
#include "windeck/base/hash.hpp"

namespace windeck {
namespace {

struct Kernels {
    PermuteRange* range;
    PermuteTake* take;
};

Kernels kernels() {
    switch (simd()) {
#ifdef WINDECK_X86
        case Simd::avx512:
            return {avx512::permute_range, avx512::permute_take};
        case Simd::avx2:
            return {avx2::permute_range, avx2::permute_take};
#endif
        default:
            return {baseline::permute_range, baseline::permute_take};
    }
}

std::uint64_t checked_size(std::uint64_t size) {
    if (size >= 1 && size <= Permutation::max_size) return size;
    throw std::invalid_argument("size is " + std::to_string(size) +
                                ", expected an integer from 1 to 2^63 - 1");
}

Rounds forward_rounds(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch) {
    std::uint64_t state = 0;
    for (const std::uint64_t word : {Permutation::order_version, size, seed, epoch}) {
        state = absorb(state, word);
    }
    Rounds rounds;
    rounds.size = size;
    rounds.bits = std::max(8U, static_cast<unsigned>(std::bit_width(size - 1)));
    rounds.shift = (rounds.bits + 1) / 2;
    rounds.mask = (std::uint64_t{1} << rounds.bits) - 1;
    for (unsigned r = 0; r < Rounds::count; ++r) {
        rounds.a[r] = ((key(state, 2 * r) & ~std::uint64_t{7}) | 5) & rounds.mask;
        rounds.c[r] = (key(state, 2 * r + 1) | 1) & rounds.mask;
    }
    rounds.post = key(state, 2 * Rounds::count) & rounds.mask;
    return rounds;
}

/// 1 / a modulo 2^64 by Newton's method: each step doubles the number of correct low bits.
std::uint64_t inverse_of_odd(std::uint64_t a) {
    std::uint64_t x = a;  // correct in 3 bits
    for (int step = 0; step < 5; ++step)
        x *= 2 - a * x;
    return x;
}

/// The rounds backwards: x = a * y + c is undone by y = x / a - c / a.
Rounds reversed(const Rounds& rounds) {
    Rounds back = rounds;
    back.pre = (0 - rounds.post) & rounds.mask;
    back.post = 0;
    for (unsigned r = 0; r < Rounds::count; ++r) {
        const unsigned from = Rounds::count - 1 - r;
        const std::uint64_t a = inverse_of_odd(rounds.a[from]);
        back.a[r] = a & rounds.mask;
        back.c[r] = (0 - a * rounds.c[from]) & rounds.mask;
    }
    return back;
}

std::uint64_t apply(const Rounds& rounds, std::uint64_t x) {
    x = (x + rounds.pre) & rounds.mask;
    x ^= x >> rounds.shift;
    for (unsigned r = 0; r < Rounds::count; ++r) {
        x = (rounds.a[r] * x + rounds.c[r]) & rounds.mask;
        x ^= x >> rounds.shift;
    }
    return (x + rounds.post) & rounds.mask;
}

std::uint64_t walk(const Rounds& rounds, std::uint64_t x) {
    do {
        x = apply(rounds, x);
    } while (x >= rounds.size);
    return x;
}

void look_up(std::span<const std::uint8_t> table, std::span<const std::int64_t> in,
             std::span<std::int64_t> out) {
    for (std::size_t j = 0; j < out.size(); ++j)
        out[j] = table[static_cast<std::uint8_t>(in[j])];
}

}  // namespace

Permutation::Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch)
    : seed_(seed),
      epoch_(epoch),
      forward_(forward_rounds(checked_size(size), seed, epoch)),
      backward_(reversed(forward_)) {
    if (!tabulated()) return;
    for (std::uint64_t p = 0; p < size; ++p) {
        const std::uint64_t sample = walk(forward_, p);
        table_[p] = static_cast<std::uint8_t>(sample);
        inverse_table_[sample] = static_cast<std::uint8_t>(p);
    }
}

std::uint64_t Permutation::at(std::uint64_t position) const {
    if (tabulated()) return table_[static_cast<std::uint8_t>(position)];
    return walk(forward_, position);
}

std::uint64_t Permutation::index_of(std::uint64_t sample) const {
    if (tabulated()) return inverse_table_[static_cast<std::uint8_t>(sample)];
    return walk(backward_, sample);
}

void Permutation::slice(std::uint64_t start, std::span<std::int64_t> out) const {
    if (tabulated()) {
        for (std::size_t j = 0; j < out.size(); ++j) {
            out[j] = table_[static_cast<std::uint8_t>(start + j)];
        }
    } else {
        kernels().range(forward_, start, out.size(), out.data());
    }
}

void Permutation::take(std::span<const std::int64_t> positions, std::span<std::int64_t> out) const {
    if (tabulated()) return look_up(table_, positions, out);
    kernels().take(forward_, positions.data(), out.size(), out.data());
}

void Permutation::index_of(std::span<const std::int64_t> samples,
                           std::span<std::int64_t> out) const {
    if (tabulated()) return look_up(inverse_table_, samples, out);
    kernels().take(backward_, samples.data(), out.size(), out.data());
}

void permute_each(std::span<const std::int64_t> sizes, std::span<const std::uint64_t> seeds,
                  std::span<const std::int64_t> epochs, std::span<const std::int64_t> positions,
                  std::span<std::int64_t> out) {
    for (std::size_t j = 0; j < out.size(); ++j) {
        const auto size = static_cast<std::uint64_t>(sizes[j]);
        const auto epoch = static_cast<std::uint64_t>(epochs[j]);
        const Rounds rounds = forward_rounds(size, seeds[j], epoch);
        out[j] = static_cast<std::int64_t>(walk(rounds, static_cast<std::uint64_t>(positions[j])));
    }
}

}  // namespace windeck
