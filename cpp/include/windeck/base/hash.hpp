// Hashing of numbers such as seeds and epochs to keys.
//
// This is a published part of the orders (see permutation.hpp): any change of it changes every
// order. All arithmetic is on unsigned 64-bit integers, modulo 2^64.
//
// mix(z), a bijection (the finaliser of SplitMix64, Stafford's variant 13):
//     z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
//     z = (z ^ (z >> 27)) * 0x94d049bb133111eb
//     z =  z ^ (z >> 31)
//
// absorb(state, word) = mix(state ^ mix(word + golden)), with golden = 0x9e3779b97f4a7c15. For a
// fixed state it is a bijection of the word, and for a fixed word one of the state. Words are
// absorbed one after the other, beginning with state 0; they are hashed and never added to one
// another, so (seed 42, epoch 1) has nothing to do with (seed 43, epoch 0).
//
// key(state, i) = mix(state + (i + 1) * golden), i = 0, 1, 2, ...: an endless sequence of keys,
// that of SplitMix64 (Steele, Lea & Flood 2014).

#pragma once

#include <cstdint>

namespace windeck {

inline constexpr std::uint64_t golden = 0x9e3779b97f4a7c15;

/// A bijection of 64 bits in which every bit of the result depends on every bit of `z`.
constexpr std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

/// The state after one more word.
constexpr std::uint64_t absorb(std::uint64_t state, std::uint64_t word) {
    return mix(state ^ mix(word + golden));
}

/// The i-th key of a state.
constexpr std::uint64_t key(std::uint64_t state, std::uint64_t i) {
    return mix(state + (i + 1) * golden);
}

}  // namespace windeck
