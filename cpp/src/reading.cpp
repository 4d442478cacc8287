#include "windeck/reading.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>

#include "file_mapping.hpp"
#include "windeck/crc32c.hpp"
#include "windeck/guard.hpp"

namespace windeck {
namespace {

/// What the kernel copies at a time: it stays in a second cache of 512 KiB. Half and twice as many
/// are as quick; with 32 KiB the calls cost a fifth more.
constexpr std::size_t piece_bytes = 256 << 10;

/// Fewer bytes are not worth a mapping of their own.
constexpr std::uint64_t mapped_bytes = 2 << 20;

/// Kept for the next call of this thread: fresh memory would cost more than the copy.
std::span<std::byte> buffer() {
    thread_local const std::unique_ptr<std::byte[]> held(new std::byte[piece_bytes + 64]);
    void* aligned = held.get();
    std::size_t room = piece_bytes + 64;
    return {static_cast<std::byte*>(std::align(64, piece_bytes, aligned, room)), piece_bytes};
}

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

std::uint32_t read_body(int file, std::uint64_t offset, std::span<std::byte> into, bool cached) {
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

void read(int file, Stretch& stretch, bool cached) {
    const std::uint64_t body = stretch.offset + stretch.front.size();
    read_exactly(file, stretch.offset, stretch.front);
    stretch.sum = read_body(file, body, stretch.body, cached);
    read_exactly(file, body + stretch.body.size(), stretch.back);
}

/// In memory, and called under a guard: nothing here is to be ended.
void copy(std::span<const std::byte> from, Stretch& stretch) {
    const auto body = from.subspan(stretch.front.size(), stretch.body.size());
    std::ranges::copy(from.first(stretch.front.size()), stretch.front.begin());
    stretch.sum = crc32c_copied(stretch.body.data(), body);
    std::ranges::copy(from.last(stretch.back.size()), stretch.back.begin());
}

/// Whether all was read from a mapping of the file.
bool read_mapped(int file, std::span<Stretch> stretches) {
    std::uint64_t bytes = 0;
    std::uint64_t first = UINT64_MAX;
    std::uint64_t end = 0;
    for (const Stretch& stretch : stretches) {
        bytes += stretch.end() - stretch.offset;
        first = std::min(first, stretch.offset);
        end = std::max(end, stretch.end());
    }
    // A sum that loads twice would load from memory twice; and what lies between is mapped too.
    if (bytes < mapped_bytes || end - first > 2 * bytes || !crc32c_copies_once()) return false;
    const FileMapping mapping(file, first, end);
    return mapping && guarded([&] {
               for (Stretch& stretch : stretches)
                   copy(mapping.bytes(stretch.offset, stretch.end()), stretch);
           });
}

}  // namespace

void read_summed(int file, std::span<Stretch> stretches, bool cached) {
    // What a mapping does not give, the kernel gives, or says what is wrong.
    const bool done = !cached && read_mapped(file, stretches);
    for (Stretch& stretch : stretches) {
        if (!done) read(file, stretch, cached);
        stretch.both = crc32c_joined(crc32c(stretch.front), stretch.sum, stretch.body.size());
    }
}

}  // namespace windeck
