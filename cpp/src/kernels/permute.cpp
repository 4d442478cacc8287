#include "kernels/permute.hpp"

namespace windeck::WINDECK_ISA {
namespace {

constexpr std::size_t block = 1024;

/// The keys as lanes of one width: 32-bit lanes hold domains up to 2^32, and twice as many fit.
template <typename Lane>
struct Keys {
    Lane size_minus_1, low, mask, pre, post, a[Rounds::count], c[Rounds::count];
    unsigned shift;

    explicit Keys(const Rounds& rounds)
        : size_minus_1(static_cast<Lane>(rounds.size - 1)),
          low(static_cast<Lane>(rounds.mask >> rounds.shift)),
          mask(static_cast<Lane>(rounds.mask)),
          pre(static_cast<Lane>(rounds.pre)),
          post(static_cast<Lane>(rounds.post)),
          shift(rounds.shift) {
        for (unsigned r = 0; r < Rounds::count; ++r) {
            a[r] = static_cast<Lane>(rounds.a[r]);
            c[r] = static_cast<Lane>(rounds.c[r]);
        }
    }
};

/// Bits above the domain are not cleared in between: additions and products never carry them
/// down, and the shift masks what it brings down.
template <typename Lane>
inline Lane encipher(const Keys<Lane>& keys, Lane x) {
    x += keys.pre;
    x ^= (x >> keys.shift) & keys.low;
    for (unsigned r = 0; r < Rounds::count; ++r) {
        x = keys.a[r] * x + keys.c[r];
        x ^= (x >> keys.shift) & keys.low;
    }
    return (x + keys.post) & keys.mask;
}

/// Walks the lanes that lie outside until all are inside; each pass is over the rest only.
template <typename Lane>
void walk(const Keys<Lane>& keys, Lane* value, std::size_t count, std::int64_t* out) {
    std::uint32_t place[block];
    std::size_t left = 0;
    for (std::size_t j = 0; j < count; ++j) {
        const Lane x = value[j];
        place[left] = static_cast<std::uint32_t>(j);
        value[left] = x;
        left += x > keys.size_minus_1;
    }
    while (left != 0) {
        for (std::size_t j = 0; j < left; ++j)
            value[j] = encipher(keys, value[j]);
        std::size_t kept = 0;
        for (std::size_t j = 0; j < left; ++j) {
            const Lane x = value[j];
            const std::uint32_t p = place[j];
            out[p] = static_cast<std::int64_t>(x);
            place[kept] = p;
            value[kept] = x;
            kept += x > keys.size_minus_1;
        }
        left = kept;
    }
}

template <typename Lane, typename Load>
void permute(const Rounds& rounds, std::size_t count, std::int64_t* out, Load load) {
    const Keys<Lane> keys(rounds);
    const bool whole = rounds.size - 1 == rounds.mask;
    Lane value[block];
    for (std::size_t base = 0; base < count; base += block) {
        const std::size_t n = count - base < block ? count - base : block;
        for (std::size_t j = 0; j < n; ++j) {
            value[j] = encipher(keys, static_cast<Lane>(load(base + j)));
        }
        for (std::size_t j = 0; j < n; ++j)
            out[base + j] = static_cast<std::int64_t>(value[j]);
        if (!whole) walk(keys, value, n, out + base);
    }
}

}  // namespace

void permute_range(const Rounds& rounds, std::uint64_t start, std::size_t count,
                   std::int64_t* out) {
    const auto load = [start](std::size_t j) { return start + j; };
    if (rounds.bits <= 32) {
        permute<std::uint32_t>(rounds, count, out, load);
    } else {
        permute<std::uint64_t>(rounds, count, out, load);
    }
}

void permute_take(const Rounds& rounds, const std::int64_t* in, std::size_t count,
                  std::int64_t* out) {
    // A value outside could lie on a cycle that never comes inside: it counts as 0.
    const std::uint64_t size = rounds.size;
    const auto load = [in, size](std::size_t j) {
        const auto x = static_cast<std::uint64_t>(in[j]);
        return x < size ? x : 0;
    };
    if (rounds.bits <= 32) {
        permute<std::uint32_t>(rounds, count, out, load);
    } else {
        permute<std::uint64_t>(rounds, count, out, load);
    }
}

}  // namespace windeck::WINDECK_ISA
