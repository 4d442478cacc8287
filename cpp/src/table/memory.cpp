#include "table/memory.hpp"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace windeck {
namespace {

constexpr std::size_t line = 64;
constexpr std::size_t huge_page = std::size_t{2} << 20;

constexpr std::size_t alignment_for(std::size_t bytes) {
    return bytes >= huge_page ? huge_page : line;
}

}  // namespace

std::byte* big_new(std::size_t bytes) {
    const std::size_t alignment = alignment_for(bytes);
    // The form that returns null: under the sanitizers any other form aborts on failure.
    void* const data = ::operator new(bytes, std::align_val_t(alignment), std::nothrow);
    if (data == nullptr) throw std::bad_alloc();
#ifdef __linux__
    if (alignment == huge_page) (void)madvise(data, bytes, MADV_HUGEPAGE);  // only a hint
#endif
    return static_cast<std::byte*>(data);
}

void big_delete(std::byte* data, std::size_t bytes) noexcept {
    ::operator delete(data, std::align_val_t(alignment_for(bytes)));
}

}  // namespace windeck
