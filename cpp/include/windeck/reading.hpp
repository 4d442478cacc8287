// Reading a stretch of a file to its place in memory, and its sum.
//
// read_summed(file, offset, into, cached) fills `into` with the bytes of an open file from `offset`
// on and returns their CRC32C. With `cached`, somebody reads `into` at once: the kernel copies
// straight to it. Without, the kernel copies to a buffer of this thread that stays in a cache, and
// from there the bytes go, summed on the way, to their place past the caches. That is as quick as
// reading without a sum, and pushes nothing out: for a tensor that is wanted later.
//
// read_exactly(file, offset, into) reads without a sum.
//
// Both throw std::system_error for what the kernel refuses, and EndOfFile where the file is
// shorter; `into` holds anything then. The offset is at most 2^63 - 1 less the bytes. O(bytes);
// thread-safe. A file that is cut meanwhile is an EndOfFile too: nothing is mapped.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

namespace windeck {

/// The file ends before what was to be read does.
class EndOfFile : public std::runtime_error {
  public:
    explicit EndOfFile(std::uint64_t at)
        : std::runtime_error("the file ends at byte " + std::to_string(at)), at_(at) {}
    [[nodiscard]] std::uint64_t at() const { return at_; }

  private:
    std::uint64_t at_;
};

void read_exactly(int file, std::uint64_t offset, std::span<std::byte> into);

std::uint32_t read_summed(int file, std::uint64_t offset, std::span<std::byte> into, bool cached);

}  // namespace windeck
