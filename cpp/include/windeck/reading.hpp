// Reading stretches of a file to their places in memory, and their sums.
//
// read_summed(file, stretches, cached) reads of each stretch a front, a body and a back, which
// follow one another in the file, and sums the front and the body (CRC32C). With `cached`, somebody
// reads the bodies at once: the kernel copies straight to them. Without, the bytes go to their
// place past the caches, summed on the way, and push nothing out: for tensors that are wanted
// later. They come by way of a buffer of this thread that stays in a cache, or, where many bytes
// lie close together and both ways were tried and this was the quicker, from mappings of the file,
// some MiB at a time.
//
// Throws std::system_error for what the kernel refuses, and EndOfFile where the file is shorter;
// the memory holds anything then. An offset is at most 2^63 - 1 less the bytes of its stretch.
// O(bytes); thread-safe. A file that is cut meanwhile is an EndOfFile too: mappings are guarded.

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

struct Stretch {
    /// Where it begins in the file.
    std::uint64_t offset = 0;
    std::span<std::byte> front{};
    std::span<std::byte> body{};
    std::span<std::byte> back{};
    /// The sums of the body, and of the front and the body, once they were read.
    std::uint32_t sum = 0;
    std::uint32_t both = 0;

    /// Where it ends in the file.
    [[nodiscard]] std::uint64_t end() const {
        return offset + front.size() + body.size() + back.size();
    }
};

void read_summed(int file, std::span<Stretch> stretches, bool cached);

}  // namespace windeck
