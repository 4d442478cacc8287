#include <fcntl.h>
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
#include "windeck/crc32c.hpp"
#include "windeck/hash.hpp"
#include "windeck/reading.hpp"

namespace {

using namespace windeck;
using Data = std::vector<std::byte>;

// In a moment of this kind, the system reads less than it is asked for, or is interrupted.
thread_local int moody = 0;

}  // namespace

// Takes the place of the system's in this program.
extern "C" ssize_t pread(int file, void* to, size_t size, off_t offset) {
    const bool short_one = moody != 0 && size > 1;
    if (moody != 0 && ++moody % 3 == 0) {
        errno = EINTR;
        return -1;
    }
    return syscall(SYS_pread64, file, to, short_one ? size / 3 + 1 : size, offset);
}

namespace {

// Two pieces and some more.
constexpr std::size_t file_bytes = 600'001;

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

const std::size_t sizes[] = {0,       1,       63,      64,      65,      1000,   65'537,
                             262'143, 262'144, 262'145, 524'287, 524'288, 524'289};

// The bytes and their sum, at any place of the file and of memory; nothing around them changes.
void test_stretches() {
    const Data data = any_bytes(file_bytes);
    const File file(data);
    for (const std::size_t size : sizes) {
        for (const std::size_t offset : {std::size_t{0}, std::size_t{57}, file_bytes - size}) {
            for (const std::size_t place : {0U, 1U, 17U}) {
                const std::span<const std::byte> expected = std::span(data).subspan(offset, size);
                for (const bool cached : {false, true}) {
                    Data to(size + 32, std::byte{0xee});
                    const std::span<std::byte> into = std::span(to).subspan(place, size);
                    const std::uint32_t sum = read_summed(file.handle(), offset, into, cached);
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

void test_ends_and_errors() {
    const File file(any_bytes(1000));
    Data to(2000);
    for (const bool cached : {false, true}) {
        const auto read = [&](int handle, std::uint64_t offset, std::size_t size) {
            read_summed(handle, offset, std::span(to).first(size), cached);
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

// The loop goes on after what came, and after an interruption.
void test_short_and_interrupted_reads() {
    const Data data = any_bytes(file_bytes);
    const File file(data);
    for (const bool cached : {false, true}) {
        Data to(file_bytes);
        moody = 1;
        const std::uint32_t sum = read_summed(file.handle(), 0, to, cached);
        check(moody > 10, "the system was moody");
        moody = 0;
        check(sum == crc32c(data) && to == data, "all of it all the same");
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
                check(read_summed(file.handle(), 0, to, round % 2 == 0) == crc32c(data), "a sum");
        });
    }
    for (std::thread& thread : threads)
        thread.join();
    for (const Data& to : found)
        check(to == data, "the bytes");
}

}  // namespace

int main() {
    test_stretches();
    test_ends_and_errors();
    test_short_and_interrupted_reads();
    test_several_threads();
}
