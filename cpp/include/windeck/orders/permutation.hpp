// A shuffle that needs no memory: a bijection of [0, size) with random access in both directions.
//
// Definition (order version 1; a published order is an API, golden values are in the tests).
// All arithmetic is on unsigned integers.
//
//   k = max(8, bits of size - 1), the domain is [0, 2^k); h = ceil(k / 2); R = 6 rounds
//   state = absorb(order version), then size, seed, epoch        (hash.hpp; one word each)
//   a_r = key(state, 2r) mod 2^k with its last three bits set to 101 (5 modulo 8), r = 0 .. R-1
//   c_r = key(state, 2r + 1) mod 2^k with its last bit set
//   f   = key(state, 2R) mod 2^k
//
//   E(x):  for r = 0 .. R-1:  x = x ^ (x >> h);  x = (a_r * x + c_r) mod 2^k
//          x = x ^ (x >> h);  x = (x + f) mod 2^k
//
//   sample at position p: x = E(p), and again x = E(x) while x >= size     (cycle walking)
//
// Why it is a bijection: a_r is odd, so a round's affine step can be undone; 2h >= k, so a
// xorshift is its own inverse; and walking along the cycles of a permutation of [0, 2^k) until
// [0, size) is reached again is a permutation of [0, size) (Black & Rogaway 2002). Each affine
// step is one step of a linear congruential generator of full period (Hull & Dobell 1962, Knuth
// 3.2.1.2); the xorshift brings its well-mixed high bits down, where the generator is weak
// (O'Neill 2014). f may be even: without it all permutations of a size 2^k would have one sign.
//
// Cost: O(1) memory, constructor included. A value takes 2^k / size evaluations on average, which
// is below 2 for sizes above 128; sizes up to 256 are tabulated. Bulk calls evaluate blocks without
// branches, collect the lanes that fell outside of [0, size) and walk only those.
//
// Errors: std::invalid_argument from the constructor. The other functions do not check that
// positions and samples are in [0, size): otherwise the results of bulk calls are unspecified, and
// single calls may not terminate; no memory outside the spans is accessed. Threads: const functions
// are thread-safe.

#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "windeck/orders/permutation_rounds.hpp"

namespace windeck {

class Permutation {
  public:
    static constexpr std::uint64_t order_version = 1;
    static constexpr std::uint64_t max_size = (std::uint64_t{1} << 63) - 1;

    /// Throws std::invalid_argument unless 1 <= size <= max_size.
    explicit Permutation(std::uint64_t size, std::uint64_t seed = 0, std::uint64_t epoch = 0);

    std::uint64_t size() const { return forward_.size; }
    std::uint64_t seed() const { return seed_; }
    std::uint64_t epoch() const { return epoch_; }

    /// The rounds of E, for its evaluation elsewhere.
    const Rounds& rounds() const { return forward_; }

    /// The sample at a position.
    std::uint64_t at(std::uint64_t position) const;

    /// The position of a sample: at(index_of(s)) == s.
    std::uint64_t index_of(std::uint64_t sample) const;

    /// out[j] = at(start + j).
    void slice(std::uint64_t start, std::span<std::int64_t> out) const;

    /// out[j] = at(positions[j]); the spans have one length and do not overlap.
    void take(std::span<const std::int64_t> positions, std::span<std::int64_t> out) const;

    /// out[j] = index_of(samples[j]); the spans have one length and do not overlap.
    void index_of(std::span<const std::int64_t> samples, std::span<std::int64_t> out) const;

    friend bool operator==(const Permutation& x, const Permutation& y) {
        return x.size() == y.size() && x.seed_ == y.seed_ && x.epoch_ == y.epoch_;
    }

  private:
    using Table = std::array<std::uint8_t, 256>;

    bool tabulated() const { return forward_.size <= 256; }

    std::uint64_t seed_;
    std::uint64_t epoch_;
    Rounds forward_;
    Rounds backward_;
    Table table_{};          // sizes up to 256: the samples in order
    Table inverse_table_{};  // and their positions
};

/// out[j] = Permutation(sizes[j], seeds[j], epochs[j]).at(positions[j]), without tables: for many
/// orders, of each a few positions. The spans have one length; sizes are at least 1.
void permute_each(std::span<const std::int64_t> sizes, std::span<const std::uint64_t> seeds,
                  std::span<const std::int64_t> epochs, std::span<const std::int64_t> positions,
                  std::span<std::int64_t> out);

}  // namespace windeck
