// The classic full-period linear congruential generator over [0, size).
//
// With m the least power of two that is >= size, a raw step is
//
//     state = (multiplier * state + increment) mod m
//
// and a draw is the state *after* a step; states >= size are skipped. With multiplier = 1
// (mod 4) and an odd increment the period is m (Hull & Dobell 1962; Knuth 3.2.1.2), so any m raw
// steps in a row give every value of [0, size) exactly once.
//
// It is a sequence with a state of one integer, not a random-access order, and a poor shuffle: the
// last bit alternates, the low bits have short periods. It is provided for training jobs that use
// it as their order: with multiplier 5, increment 2 * (rank + seed) + 1 and initial state seed +
// rank it gives the document order of fms-fsdp, bit for bit. For shuffling see Permutation.
//
// Cost: O(1) memory; m / size < 2 raw steps per value over a period; a jump takes O(log m) (Brown
// 1994).
// Errors: std::invalid_argument from the constructor.
// Threads: not thread-safe.

#pragma once

#include <cstdint>
#include <span>

namespace windeck {

class Lcg {
  public:
    static constexpr std::uint64_t max_size = (std::uint64_t{1} << 63) - 1;

    /// Throws std::invalid_argument unless 1 <= size <= max_size, multiplier = 1 (mod 4) and
    /// increment is odd. The state is taken modulo m.
    explicit Lcg(std::uint64_t size, std::uint64_t multiplier = 5, std::uint64_t increment = 1,
                 std::uint64_t state = 0);

    std::uint64_t size() const { return size_; }
    std::uint64_t multiplier() const { return multiplier_; }
    std::uint64_t increment() const { return increment_; }
    std::uint64_t state() const { return state_; }

    /// m - 1: the period is this plus one.
    std::uint64_t mask() const { return mask_; }

    /// Draws out.size() values. Afterwards the state is the last one, as if drawn one by one.
    void draw(std::span<std::int64_t> out);

    /// Advances by `steps` raw steps, including skipped values. To go back by s, advance by m - s
    /// or 2^64 - s.
    void jump(std::uint64_t steps);

    friend bool operator==(const Lcg&, const Lcg&) = default;

  private:
    std::uint64_t step(std::uint64_t x) const { return (multiplier_ * x + increment_) & mask_; }

    std::uint64_t size_;
    std::uint64_t mask_;
    std::uint64_t multiplier_;
    std::uint64_t increment_;
    std::uint64_t state_;
};

}  // namespace windeck
