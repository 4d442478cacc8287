#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <system_error>
#include <thread>
#include <vector>

#include "check.hpp"
#include "quicker.hpp"
#include "reading_ways.hpp"
#include "windeck/crc32c.hpp"
#include "windeck/hash.hpp"
#include "windeck/reading.hpp"

namespace {

using namespace windeck;
using Data = std::vector<std::byte>;

// In a moment of this kind, the system reads less than it is asked for, or is interrupted.
thread_local int moody = 0;
// How often it was asked to read, and to map, which it refuses when it is told to.
thread_local int reads = 0;
thread_local int maps = 0;
thread_local int unmaps = 0;
thread_local bool refuses = false;
// What it says of a file's size, so that a mapping reaches past the end.
thread_local off_t pretended = 0;

}  // namespace

// These take the place of the system's in this program.
extern "C" ssize_t pread(int file, void* to, size_t size, off_t offset) {
    ++reads;
    const bool short_one = moody != 0 && size > 1;
    if (moody != 0 && ++moody % 3 == 0) {
        errno = EINTR;
        return -1;
    }
    return syscall(SYS_pread64, file, to, short_one ? size / 3 + 1 : size, offset);
}

extern "C" void* mmap(void* at, size_t size, int access, int flags, int file, off_t offset) {
    if (file >= 0) ++maps;
    if (file >= 0 && refuses) {
        errno = ENODEV;
        return MAP_FAILED;
    }
    return reinterpret_cast<void*>(syscall(SYS_mmap, at, size, access, flags, file, offset));
}

extern "C" int munmap(void* at, size_t size) noexcept {
    ++unmaps;
    return static_cast<int>(syscall(SYS_munmap, at, size));
}

extern "C" int fstat(int file, struct stat* found) {
    const auto failed = static_cast<int>(syscall(SYS_fstat, file, found));
    if (pretended != 0) found->st_size = pretended;
    return failed;
}

namespace {

// Enough for a mapping, and two pieces and some more.
constexpr std::size_t file_bytes = (3 << 20) + 600'001;

class File {
  public:
    explicit File(const Data& data) : file_(std::tmpfile()) {
        check(file_ != nullptr, "a temporary file");
        check(std::fwrite(data.data(), 1, data.size(), file_) == data.size(), "written");
        check(std::fflush(file_) == 0, "flushed");
    }
    ~File() { std::fclose(file_); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    [[nodiscard]] int handle() const { return fileno(file_); }

  private:
    std::FILE* file_;
};

Data any_bytes(std::size_t size) {
    Data bytes(size);
    for (std::size_t i = 0; i < size; ++i)
        bytes[i] = static_cast<std::byte>(key(3, i));
    return bytes;
}

const std::size_t sizes[] = {0,       1,       63,      64,        65,        1000,     65'537,
                             262'143, 262'144, 262'145, 2'097'151, 2'097'152, 2'500'001};

using Way = void (*)(int, std::span<Stretch>);

const Way ways[] = {read_cached, read_buffered, read_mapped};

std::uint32_t read_one(Way way, int file, std::uint64_t offset, std::span<std::byte> into) {
    Stretch stretch{.offset = offset, .body = into};
    way(file, {&stretch, 1});
    check(stretch.both == stretch.sum, "no front");
    return stretch.sum;
}

// The bytes and their sum, at any place of the file and of memory; nothing around them changes.
void test_bodies() {
    const Data data = any_bytes(file_bytes);
    const File file(data);
    for (const std::size_t size : sizes) {
        for (const std::size_t offset : {std::size_t{0}, std::size_t{57}, file_bytes - size}) {
            for (const std::size_t place : {0U, 1U, 17U}) {
                const std::span<const std::byte> expected = std::span(data).subspan(offset, size);
                for (const Way way : ways) {
                    Data to(size + 32, std::byte{0xee});
                    const std::span<std::byte> into = std::span(to).subspan(place, size);
                    const std::uint32_t sum = read_one(way, file.handle(), offset, into);
                    check(sum == crc32c(expected), "the sum");
                    check(std::ranges::equal(into, expected), "the bytes");
                    const auto left = std::ranges::count(to, std::byte{0xee});
                    const auto inside = std::ranges::count(expected, std::byte{0xee});
                    check(left == inside + 32, "what lies around");
                }
            }
        }
    }
}

// Stretches of all sizes, in some order of the file, with fronts and backs.
struct Several {
    explicit Several(const Data& file) : data(file), to(sizes_of.size()), stretches(to.size()) {
        std::uint64_t at = 3;
        for (const std::size_t i : {2U, 0U, 3U, 1U}) {
            to[i].resize(5 + sizes_of[i] + 13);
            const std::span<std::byte> all = to[i];
            stretches[i] = {.offset = at,
                            .front = all.first(5),
                            .body = all.subspan(5, sizes_of[i]),
                            .back = all.last(13)};
            at = stretches[i].end() + 7;
        }
    }

    void check_all() const {
        for (std::size_t i = 0; i < to.size(); ++i) {
            const auto expected = std::span(data).subspan(stretches[i].offset, to[i].size());
            check(std::ranges::equal(to[i], expected), "front, body and back");
            check(stretches[i].sum == crc32c(expected.subspan(5, sizes_of[i])), "the body's sum");
            check(stretches[i].both == crc32c(expected.first(5 + sizes_of[i])), "the sum of both");
        }
    }

    inline static const std::vector<std::size_t> sizes_of{1'000'000, 1'100'000, 0, 300'001};
    const Data& data;
    std::vector<Data> to;
    std::vector<Stretch> stretches;
};

// What the system does not map is read instead.
void test_ways() {
    const Data data = any_bytes(file_bytes);
    const File file(data);
    for (const Way way : ways) {
        for (const bool refused : {false, true}) {
            Several several(data);
            reads = maps = unmaps = 0;
            refuses = refused;
            way(file.handle(), several.stretches);
            refuses = false;
            several.check_all();
            check(maps == (way == read_mapped ? 1 : 0), "whether a mapping was asked for");
            check((reads == 0) == (way == read_mapped && !refused), "whether it was read from");
            check(unmaps == (way == read_mapped && !refused ? 1 : 0), "and let go again");
        }
    }
}

// Some MiB at a time; what is larger by itself is not mapped.
void test_mappings_are_bounded() {
    const std::size_t sizes_of[] = {7 << 20, 9 << 20, 3 << 20, 17 << 20, 1};
    const File file(any_bytes(1));
    check(ftruncate(file.handle(), 40 << 20) == 0, "a hole");
    std::vector<Data> to;
    std::vector<Stretch> stretches;
    std::uint64_t at = 0;
    for (const std::size_t size : sizes_of) {
        to.emplace_back(size, std::byte{0xee});
        stretches.push_back({.offset = at, .body = to.back()});
        at += size;
    }
    reads = maps = 0;
    read_mapped(file.handle(), stretches);
    check(maps == 3, "the first two, the third, and the last");
    check(reads == 17 << 2, "the fourth, by 256 KiB");
    for (std::size_t i = 0; i < to.size(); ++i)
        check(stretches[i].sum == crc32c(to[i]) && to[i].back() == std::byte{0}, "all was read");
}

// Both ways are tried, and one is gone from then on.
void test_the_choice() {
    const Data data = any_bytes(file_bytes);
    const File file(data);
    const auto mapped_of = [&](int calls) {
        maps = 0;
        for (int call = 0; call < calls; ++call) {
            Several several(data);
            read_summed(file.handle(), several.stretches, false);
            several.check_all();
        }
        return maps;
    };
    const int tried = mapped_of(2 * Quicker::trials);
    check(tried == (crc32c_copies_once() ? Quicker::trials : 0), "half of the trials");
    const int later = mapped_of(10);
    check(later == 0 || (later == 10 && tried != 0), "the same way each time");
    Several several(data);
    reads = maps = 0;
    read_summed(file.handle(), several.stretches, true);
    check(maps == 0 && reads != 0, "what is read at once is not mapped");
}

void test_what_is_worth_mapping() {
    const bool once = crc32c_copies_once();
    const std::uint64_t least = 2 << 20;
    check(is_worth_mapping({.bytes = least, .first = 5, .end = 5 + least}) == once, "many bytes");
    check(!is_worth_mapping({.bytes = least - 1, .first = 5, .end = 5 + least}), "few bytes");
    check(is_worth_mapping({.bytes = least, .first = 0, .end = 2 * least}) == once, "gaps");
    check(!is_worth_mapping({.bytes = least, .first = 0, .end = 2 * least + 1}), "wide gaps");
    check(!is_worth_mapping(extent_of({})), "nothing");
}

void test_ends_and_errors() {
    const File file(any_bytes(1000));
    Data to(2000);
    for (const Way way : ways) {
        const auto read = [&](int handle, std::uint64_t offset, std::size_t size) {
            read_one(way, handle, offset, std::span(to).first(size));
        };
        read(file.handle(), 1000, 0);
        read(file.handle(), 999, 1);
        check_throws<EndOfFile>([&] { read(file.handle(), 999, 2); }, "the file ends at byte 1000");
        check_throws<EndOfFile>([&] { read(file.handle(), 0, 2000); }, "ends at byte 1000");
        check_throws<EndOfFile>([&] { read(file.handle(), 5000, 1); }, "ends at byte 5000");
        check_throws<std::system_error>([&] { read(-1, 0, 1); }, "Bad file descriptor");
        const int folder = open("/", O_RDONLY);
        check_throws<std::system_error>([&] { read(folder, 0, 1); }, "directory");
        close(folder);
        const auto furthest =
            static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) - 1;
        check_throws<EndOfFile>([&] { read(file.handle(), furthest, 1); }, "the file ends");
    }
}

// A file that is too short, and one that is cut once its size was looked at.
void test_files_that_are_cut() {
    const Data data = any_bytes(file_bytes);
    const File file(data);
    Several several(data);
    check(ftruncate(file.handle(), 2'000'000) == 0, "cut");
    const auto read = [&] { read_mapped(file.handle(), several.stretches); };
    maps = 0;
    check_throws<EndOfFile>(read, "the file ends at byte 2000000");
    check(maps == 0, "its size was seen");
    pretended = file_bytes;
    check_throws<EndOfFile>(read, "the file ends at byte 2000000");
    pretended = 0;
    check(maps == 1, "it was touched beyond its end");
}

// The loop goes on after what came, and after an interruption.
void test_short_and_interrupted_reads() {
    const Data data = any_bytes(file_bytes);
    const File file(data);
    for (const Way way : {read_cached, read_buffered}) {
        Data to(600'001);
        moody = 1;
        const std::uint32_t sum = read_one(way, file.handle(), 0, to);
        check(moody > 10, "the system was moody");
        moody = 0;
        check(sum == crc32c(to), "the sum");
        check(std::ranges::equal(to, std::span(data).first(to.size())), "all of it all the same");
    }
}

void test_several_threads() {
    const Data data = any_bytes(file_bytes);
    const File file(data);
    std::vector<std::thread> threads;
    std::vector<Data> found(4, Data(file_bytes));
    for (Data& to : found) {
        threads.emplace_back([&] {
            for (int round = 0; round < 20; ++round)
                check(read_one(ways[round % 3], file.handle(), 0, to) == crc32c(data), "a sum");
        });
    }
    for (std::thread& thread : threads)
        thread.join();
    for (const Data& to : found)
        check(to == data, "the bytes");
}

}  // namespace

int main() {
    test_bodies();
    test_ways();
    test_mappings_are_bounded();
    test_the_choice();
    test_what_is_worth_mapping();
    test_ends_and_errors();
    test_files_that_are_cut();
    test_short_and_interrupted_reads();
    test_several_threads();
}
