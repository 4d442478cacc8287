#include "windeck/checkpoint/file_values.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "windeck/base/parallel.hpp"
#include "windeck/checkpoint/crc32c.hpp"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace windeck {
namespace {

constexpr std::size_t piece_bytes = std::size_t{64} << 10;
constexpr std::size_t number_bytes = 7;  // of a sequence number

/// A CRC32C as RocksDB stores it, so that data with embedded sums can be summed.
constexpr std::uint32_t masked(std::uint32_t sum) {
    return (sum >> 15 | sum << 17) + 0xA282EAD8U;
}

/// Copies past the caches, if the processor has an instruction for it.
void stream(std::byte* to, const std::byte* from, std::size_t size) {
#ifdef __SSE2__
    constexpr std::size_t line = 64;
    const std::size_t before = -reinterpret_cast<std::uintptr_t>(to) % line;
    if (size >= before + line) {
        std::memcpy(to, from, before);
        std::size_t at = before;
        for (; at + line <= size; at += line) {
            for (std::size_t i = at; i < at + line; i += sizeof(__m128i)) {
                const auto* const source = reinterpret_cast<const __m128i*>(from + i);
                _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(source));
            }
        }
        _mm_sfence();  // other threads see these stores only after it
        to += at;
        from += at;
        size -= at;
    }
#endif
    if (size != 0) std::memcpy(to, from, size);
}

/// Fills memory from an offset of the file on; returns whether all of it was read.
bool fill(int file, std::uint64_t offset, std::span<std::byte> to) {
    while (!to.empty()) {
        const ssize_t done = ::pread(file, to.data(), to.size(), static_cast<off_t>(offset));
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        to = to.subspan(static_cast<std::size_t>(done));
        offset += static_cast<std::uint64_t>(done);
    }
    return true;
}

/// Reads a value; `buffer` has piece_bytes, or is null to read bodies into their place.
bool read(int file, FileValue& value, std::span<const std::byte> end, std::byte* buffer) {
    std::vector<std::byte> first(value.begin.size() + number_bytes + value.head.size());
    if (!fill(file, value.offset, first)) return false;
    if (!std::ranges::equal(value.begin, std::span(first).first(value.begin.size()))) return false;
    std::uint64_t at = value.offset + first.size();
    std::uint32_t sum = 0;
    for (std::span<std::byte> left = value.body; !left.empty();) {
        const std::size_t size = std::min(piece_bytes, left.size());
        const std::span<std::byte> piece(buffer == nullptr ? left.data() : buffer, size);
        if (!fill(file, at, piece)) return false;
        sum = crc32c(piece, sum);
        if (buffer != nullptr) stream(left.data(), buffer, size);
        at += size;
        left = left.subspan(size);
    }
    std::vector<std::byte> last(end.size() + sizeof(std::uint32_t));
    if (!fill(file, at, last)) return false;
    const auto ending = std::span(last).first(end.size());
    const std::uint32_t whole =
        masked(crc32c(ending, crc32c_joined(crc32c(first), sum, value.body.size())));
    if (!std::ranges::equal(end, ending)) return false;
    if (std::memcmp(last.data() + end.size(), &whole, sizeof(whole)) != 0) return false;
    std::ranges::copy(std::span(first).last(value.head.size()), value.head.begin());
    value.sum = sum;
    return true;
}

}  // namespace

void read_values(int file, std::span<FileValue> values, std::span<const std::byte> end,
                 bool streamed, int threads) {
    const auto count = static_cast<std::int64_t>(values.size());
    const std::int64_t grain = std::max<std::int64_t>(1, count / (4 * threads));
    parallel_for(count, grain, threads, [&](std::int64_t first, std::int64_t stop) {
        const auto buffer =
            streamed ? std::make_unique_for_overwrite<std::byte[]>(piece_bytes) : nullptr;
        for (std::int64_t i = first; i < stop; ++i)
            (void)read(file, values[static_cast<std::size_t>(i)], end, buffer.get());
    });
}

}  // namespace windeck
