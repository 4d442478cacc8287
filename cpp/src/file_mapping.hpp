// Bytes of a file as memory, for as long as this lives.
//
// The pages are asked for at once: the system then reads ahead what is not in its cache, and takes
// a fault for none of them. A file that is cut afterwards raises SIGBUS when it is read
// (guard.hpp).

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace windeck {

class FileMapping {
  public:
    /// Bytes [first, end) of a file, which are not none; false where the file ends before them, and
    /// where the system does not map it.
    FileMapping(int file, std::uint64_t first, std::uint64_t end);
    ~FileMapping();
    FileMapping(const FileMapping&) = delete;
    FileMapping& operator=(const FileMapping&) = delete;

    explicit operator bool() const { return !memory_.empty(); }

    /// Those from one place of the file to another; both lie in what was mapped.
    [[nodiscard]] std::span<const std::byte> bytes(std::uint64_t first, std::uint64_t end) const {
        return memory_.subspan(first - start_, end - first);
    }

  private:
    std::uint64_t start_ = 0;
    std::span<const std::byte> memory_;
};

}  // namespace windeck
