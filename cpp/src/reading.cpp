#include "windeck/reading.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>

#include "file_mapping.hpp"
#include "quicker.hpp"
#include "reading_ways.hpp"
#include "windeck/crc32c.hpp"
#include "windeck/guard.hpp"

namespace windeck {
namespace {

/// What the kernel copies at a time: it stays in a second cache of 512 KiB. Half and twice as many
/// are as quick; with 32 KiB the calls cost a fifth more.
constexpr std::size_t piece_bytes = 256 << 10;

/// Fewer bytes are not worth a mapping.
constexpr std::uint64_t least_mapped_bytes = 2 << 20;

/// What is mapped at once: it counts as memory of the process.
constexpr std::uint64_t mapping_bytes = (16 << 20) + (64 << 10);

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

void sum_both(Stretch& stretch) {
    stretch.both = crc32c_joined(crc32c(stretch.front), stretch.sum, stretch.body.size());
}

void read(int file, std::span<Stretch> stretches, bool cached) {
    for (Stretch& stretch : stretches) {
        const std::uint64_t body = stretch.offset + stretch.front.size();
        read_exactly(file, stretch.offset, stretch.front);
        stretch.sum = read_body(file, body, stretch.body, cached);
        read_exactly(file, body + stretch.body.size(), stretch.back);
        sum_both(stretch);
    }
}

/// In memory, and called under a guard: nothing here is to be ended.
void copy(std::span<const std::byte> from, Stretch& stretch) {
    const auto body = from.subspan(stretch.front.size(), stretch.body.size());
    std::ranges::copy(from.first(stretch.front.size()), stretch.front.begin());
    stretch.sum = crc32c_copied(stretch.body.data(), body);
    std::ranges::copy(from.last(stretch.back.size()), stretch.back.begin());
    sum_both(stretch);
}

/// How many of the first stretches one mapping is to hold.
std::size_t mapped_together(std::span<const Stretch> stretches) {
    Extent all = extent_of(stretches.first(1));
    std::size_t count = 1;
    for (; count < stretches.size(); ++count) {
        all = all.with(stretches[count]);
        if (all.end - all.first > mapping_bytes) break;
    }
    return count;
}

void read_from_mapping(int file, std::span<Stretch> stretches) {
    const Extent extent = extent_of(stretches);
    if (extent.end - extent.first > mapping_bytes) return read_buffered(file, stretches);
    const FileMapping mapping(file, extent.first, extent.end);
    const bool done = mapping && guarded([&] {
                          for (Stretch& stretch : stretches)
                              copy(mapping.bytes(stretch.offset, stretch.end()), stretch);
                      });
    if (!done) read_buffered(file, stretches);  // or it says what is wrong
}

/// Processor time of this thread: what others do, and what a disk takes, is not counted.
double seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

Extent Extent::with(const Stretch& stretch) const {
    return {.bytes = bytes + stretch.end() - stretch.offset,
            .first = std::min(first, stretch.offset),
            .end = std::max(end, stretch.end())};
}

Extent extent_of(std::span<const Stretch> stretches) {
    Extent all;
    for (const Stretch& stretch : stretches)
        all = all.with(stretch);
    return all;
}

bool is_worth_mapping(const Extent& extent) {
    // A sum that loads each byte twice would load from memory twice.
    return extent.bytes >= least_mapped_bytes && extent.end - extent.first <= 2 * extent.bytes &&
           crc32c_copies_once();
}

void read_cached(int file, std::span<Stretch> stretches) {
    read(file, stretches, true);
}

void read_buffered(int file, std::span<Stretch> stretches) {
    read(file, stretches, false);
}

void read_mapped(int file, std::span<Stretch> stretches) {
    while (!stretches.empty()) {
        const std::size_t count = mapped_together(stretches);
        read_from_mapping(file, stretches.first(count));
        stretches = stretches.subspan(count);
    }
}

void read_summed(int file, std::span<Stretch> stretches, bool cached) {
    if (cached) return read_cached(file, stretches);
    const Extent extent = extent_of(stretches);
    if (!is_worth_mapping(extent)) return read_buffered(file, stretches);
    // Processors differ: on a Xeon mapping takes four fifths of the other's time, on an EPYC more.
    static Quicker quicker;
    const std::size_t way = quicker.way();
    const double start = seconds();
    if (way == 0)
        read_buffered(file, stretches);
    else
        read_mapped(file, stretches);
    quicker.took(way, (seconds() - start) / static_cast<double>(extent.bytes));
}

}  // namespace windeck
