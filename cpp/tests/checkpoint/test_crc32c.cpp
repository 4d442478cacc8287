#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "check.hpp"
#include "checkpoint/crc32c_sums.hpp"
#include "windeck/base/hash.hpp"
#include "windeck/checkpoint/crc32c.hpp"

namespace {

using namespace windeck;
using Data = std::vector<std::byte>;

// The definition, bit by bit.
std::uint32_t model_after(std::uint32_t state, std::byte byte) {
    state ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit)
        state = (state >> 1) ^ ((state & 1) != 0 ? 0x82f63b78U : 0U);
    return state;
}

std::uint32_t model(std::span<const std::byte> bytes) {
    std::uint32_t state = 0xffffffff;
    for (const std::byte byte : bytes)
        state = model_after(state, byte);
    return ~state;
}

// The sum by every implementation for this processor.
void check_all(std::span<const std::byte> bytes, std::uint32_t expected, const char* what) {
    check(crc32c(bytes) == expected, what);
    check(crc32c_by_tables(bytes) == expected, what);
    for (const crc::SumFunction sum : crc::implementations())
        check(~sum(0xffffffff, bytes.data(), bytes.size()) == expected, what);
}

void test_published() {
    // The catalogue's check value, and RFC 3720, B.4.
    check_all(std::as_bytes(std::span(std::string_view("123456789"))), 0xe3069283, "123456789");
    check_all({}, 0, "no bytes");
    check_all(Data(32, std::byte{0}), 0x8a9136aa, "32 bytes of zeros");
    check_all(Data(32, std::byte{0xff}), 0x62a8ab43, "32 bytes of ones");
    Data up;
    Data down;
    for (int i = 0; i < 32; ++i) {
        up.push_back(static_cast<std::byte>(i));
        down.push_back(static_cast<std::byte>(31 - i));
    }
    check_all(up, 0x46dd794e, "32 incrementing bytes");
    check_all(down, 0x113fdb5c, "32 decrementing bytes");
}

Data any_bytes(std::size_t size) {
    Data bytes(size);
    for (std::size_t i = 0; i < size; ++i)
        bytes[i] = static_cast<std::byte>(key(7, i));
    return bytes;
}

// Every size up to several rounds of each implementation, at every place within the widest
// register.
void test_sizes_and_places() {
    const Data bytes = any_bytes(1400);
    const std::span<const std::byte> all(bytes);
    for (std::size_t at = 0; at < 64; ++at) {
        std::uint32_t state = 0xffffffff;
        for (std::size_t size = 0; size <= 1300; ++size) {
            check_all(all.subspan(at, size), ~state, "a size at a place");
            state = model_after(state, all[at + size]);
        }
    }
}

// Each is linear but for where it begins: with each bit of the register, and each bit of the
// bytes, all of it is right.
void test_each_bit() {
    Data zeros(1000, std::byte{0});
    for (const crc::SumFunction sum : crc::implementations()) {
        for (int bit = 0; bit < 32; ++bit) {
            std::uint32_t expected = std::uint32_t{1} << bit;
            const std::uint32_t before = expected;
            for (const std::byte byte : zeros)
                expected = model_after(expected, byte);
            check(sum(before, zeros.data(), zeros.size()) == expected, "a bit of the register");
        }
        for (std::size_t bit = 0; bit < 8 * zeros.size(); ++bit) {
            std::byte& byte = zeros[bit / 8];
            byte = static_cast<std::byte>(1U << bit % 8);
            std::uint32_t expected = 0;
            for (std::size_t i = bit / 8; i < zeros.size(); ++i)
                expected = model_after(expected, zeros[i]);
            check(sum(0, zeros.data(), zeros.size()) == expected, "a bit of the bytes");
            byte = std::byte{0};
        }
    }
}

void test_rounds_and_splits() {
    const Data bytes = any_bytes(50'001);
    const std::span<const std::byte> all(bytes);
    // Around one and several rounds of three streams.
    for (const std::size_t round : {12'288U, 24'576U, 49'152U})
        for (std::size_t size = round - 9; size <= round + 9; ++size)
            check_all(all.subspan(1).first(size), model(all.subspan(1).first(size)), "a round");
    const std::uint32_t whole = model(all);
    for (std::size_t cut = 0; cut <= all.size(); cut += 1237) {
        check(crc32c(all.subspan(cut), crc32c(all.first(cut))) == whole, "a split");
        check(crc32c_by_tables(all.subspan(cut), crc32c_by_tables(all.first(cut))) == whole,
              "a split");
        check(crc32c_joined(crc32c(all.first(cut)), crc32c(all.subspan(cut)), all.size() - cut) ==
                  whole,
              "a split, joined");
    }
}

// The model is a sum over zeros that are there.
void test_joining_many_zeros() {
    const Data zeros(1'000'003, std::byte{0});
    for (std::size_t size = 0; size < zeros.size(); size = 3 * size + 1) {
        const auto range = std::span(zeros).first(size);
        check(crc32c_joined(0x12345678, crc32c(range), size) == crc32c(range, 0x12345678), "zeros");
    }
    // Twice as many at once as twice as many.
    const std::uint64_t half = std::uint64_t{1} << 40;
    const std::uint32_t once = crc32c_joined(0xdeadbeef, 0, half);
    check(crc32c_joined(once, 0, half) == crc32c_joined(0xdeadbeef, 0, 2 * half), "2^41 bytes");
}

void test_each_flipped_bit_shows() {
    Data bytes(100, std::byte{0x5a});
    const std::uint32_t right = crc32c(bytes);
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
        bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
        check(crc32c(bytes) != right, "a flipped bit");
        bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    }
}

}  // namespace

int main() {
    test_published();
    test_sizes_and_places();
    test_each_bit();
    test_rounds_and_splits();
    test_joining_many_zeros();
    test_each_flipped_bit_shows();
}
