#include "windeck/orders/lcg.hpp"

#include <array>
#include <bit>
#include <stdexcept>
#include <string>

namespace windeck {
namespace {

/// x -> a * x + c modulo 2^64.
struct Affine {
    std::uint64_t a = 1;
    std::uint64_t c = 0;
};

/// First `f`, then `g`.
Affine then(Affine f, Affine g) {
    return {g.a * f.a, g.a * f.c + g.c};
}

/// f applied `times` times, by squaring.
Affine power(Affine f, std::uint64_t times) {
    Affine result;
    for (; times != 0; times >>= 1) {
        if (times & 1) result = then(result, f);
        f = then(f, f);
    }
    return result;
}

[[noreturn]] void refuse(const char* name, std::uint64_t found, const char* expected) {
    throw std::invalid_argument(std::string(name) + " is " + std::to_string(found) + ", expected " +
                                expected);
}

}  // namespace

Lcg::Lcg(std::uint64_t size, std::uint64_t multiplier, std::uint64_t increment,
         std::uint64_t state) {
    if (size < 1 || size > max_size) refuse("size", size, "an integer from 1 to 2^63 - 1");
    if (multiplier % 4 != 1) {
        refuse("multiplier", multiplier, "1 modulo 4, as a full period needs");
    }
    if (increment % 2 != 1) refuse("increment", increment, "an odd number, as a full period needs");
    size_ = size;
    mask_ = (std::uint64_t{1} << std::bit_width(size - 1)) - 1;
    multiplier_ = multiplier;
    increment_ = increment;
    state_ = state & mask_;
}

void Lcg::draw(std::span<std::int64_t> out) {
    std::size_t drawn = 0;
    // Several lanes, each as many raw steps apart, hide the latency of the multiplication. They
    // run only while whatever they yield is wanted, so that the state ends on the last value.
    constexpr std::size_t lanes = 8;
    const Affine leap = power({multiplier_, increment_}, lanes);
    std::array<std::uint64_t, lanes> lane{};
    if (out.size() > lanes) {
        std::uint64_t x = state_;
        for (std::uint64_t& value : lane)
            value = x = step(x);
        while (out.size() - drawn > lanes) {
            for (std::uint64_t& value : lane) {
                out[drawn] = static_cast<std::int64_t>(value);
                drawn += value < size_;
                state_ = value;
                value = (leap.a * value + leap.c) & mask_;
            }
        }
    }
    while (drawn < out.size()) {
        state_ = step(state_);
        out[drawn] = static_cast<std::int64_t>(state_);
        drawn += state_ < size_;
    }
}

void Lcg::jump(std::uint64_t steps) {
    const Affine leap = power({multiplier_, increment_}, steps & mask_);
    state_ = (leap.a * state_ + leap.c) & mask_;
}

}  // namespace windeck
