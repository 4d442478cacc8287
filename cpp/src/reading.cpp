#include "windeck/reading.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>

#include "windeck/crc32c.hpp"

namespace windeck {
namespace {

/// What the kernel copies at a time: it stays in a second cache of 512 KiB. Half and twice as many
/// are as quick; with 32 KiB the calls cost a fifth more.
constexpr std::size_t piece_bytes = 256 << 10;

/// Kept for the next call of this thread: fresh memory would cost more than the copy.
std::span<std::byte> buffer() {
    thread_local const std::unique_ptr<std::byte[]> held(new std::byte[piece_bytes + 64]);
    void* aligned = held.get();
    std::size_t room = piece_bytes + 64;
    return {static_cast<std::byte*>(std::align(64, piece_bytes, aligned, room)), piece_bytes};
}

}  // namespace

void read_exactly(int file, std::uint64_t offset, std::span<std::byte> into) {
    while (!into.empty()) {
        const ssize_t count = pread(file, into.data(), into.size(), static_cast<off_t>(offset));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) throw std::system_error(errno, std::generic_category());
        if (count == 0) throw EndOfFile(offset);
        into = into.subspan(static_cast<std::size_t>(count));
        offset += static_cast<std::uint64_t>(count);
    }
}

std::uint32_t read_summed(int file, std::uint64_t offset, std::span<std::byte> into, bool cached) {
    std::uint32_t sum = 0;
    const std::span<std::byte> held = cached ? into.first(0) : buffer();
    while (!into.empty()) {
        const std::span<std::byte> place = into.first(std::min(into.size(), piece_bytes));
        const std::span<std::byte> piece = cached ? place : held.first(place.size());
        read_exactly(file, offset, piece);
        sum = cached ? crc32c(piece, sum) : crc32c_copied(place.data(), piece, sum);
        into = into.subspan(place.size());
        offset += place.size();
    }
    return sum;
}

}  // namespace windeck
