#include "file_mapping.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace windeck {
namespace {

#ifdef MAP_POPULATE
constexpr int flags = MAP_SHARED | MAP_POPULATE;
#else
constexpr int flags = MAP_SHARED;
#endif

bool reaches(int file, std::uint64_t end) {
    struct stat found{};
    return fstat(file, &found) == 0 && found.st_size >= 0 &&
           end <= static_cast<std::uint64_t>(found.st_size);
}

}  // namespace

FileMapping::FileMapping(int file, std::uint64_t first, std::uint64_t end) {
    const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    start_ = first / page * page;
    const auto size = static_cast<std::size_t>(end - start_);
    if (!reaches(file, end)) return;
    void* const made = mmap(nullptr, size, PROT_READ, flags, file, static_cast<off_t>(start_));
    if (made != MAP_FAILED) memory_ = {static_cast<const std::byte*>(made), size};
}

FileMapping::~FileMapping() {
    if (!memory_.empty()) munmap(const_cast<std::byte*>(memory_.data()), memory_.size());
}

}  // namespace windeck
