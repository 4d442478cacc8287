#include "windeck/checkpoint/file_values.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "windeck/base/parallel.hpp"
#include "windeck/checkpoint/crc32c.hpp"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace windeck {
namespace {

constexpr std::size_t piece_bytes = std::size_t{64} << 10;

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
bool read(int file, FileValue& value, std::byte* buffer) {
    std::uint64_t at = value.offset + value.head.size();
    if (!fill(file, value.offset, value.head)) return false;
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
    if (!fill(file, at, value.end)) return false;
    value.sum = sum;
    return true;
}

}  // namespace

void read_values(int file, std::span<FileValue> values, bool streamed, int threads) {
    const auto count = static_cast<std::int64_t>(values.size());
    const std::int64_t grain = std::max<std::int64_t>(1, count / (4 * threads));
    parallel_for(count, grain, threads, [&](std::int64_t begin, std::int64_t end) {
        const auto buffer =
            streamed ? std::make_unique_for_overwrite<std::byte[]>(piece_bytes) : nullptr;
        for (std::int64_t i = begin; i < end; ++i)
            (void)read(file, values[static_cast<std::size_t>(i)], buffer.get());
    });
}

}  // namespace windeck
