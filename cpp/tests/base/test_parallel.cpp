#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.hpp"
#include "windeck/base/parallel.hpp"

using namespace windeck;

namespace {

/// Every number once, whatever the grain and the threads.
void covers(std::int64_t count, std::int64_t grain, int threads) {
    std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
    parallel_for(count, grain, threads, [&](std::int64_t begin, std::int64_t end) {
        check(begin < end && end - begin <= grain, "a piece is not empty and no longer than grain");
        for (std::int64_t i = begin; i < end; ++i)
            ++seen[static_cast<std::size_t>(i)];
    });
    for (const auto& times : seen)
        check(times == 1, "each number once");
}

void throws_the_first_error() {
    std::atomic<int> calls = 0;
    check_throws<std::runtime_error>(
        [&] {
            parallel_for(1'000'000, 1, 4, [&](std::int64_t begin, std::int64_t) {
                ++calls;
                if (begin == 10) throw std::runtime_error("ten");
            });
        },
        "ten");
    check(calls < 1'000'000, "pieces not yet begun are dropped");
}

void nests() {
    std::atomic<std::int64_t> sum = 0;
    parallel_for(8, 1, 4, [&](std::int64_t, std::int64_t) {
        parallel_for(100, 7, 3, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
    });
    check(sum == 800, "a loop inside a loop");
}

void many_callers() {
    std::vector<std::thread> callers;
    for (int t = 0; t < 8; ++t) {
        callers.emplace_back([] {
            for (int i = 0; i < 50; ++i)
                covers(100, 3, 3);
        });
    }
    for (auto& caller : callers)
        caller.join();
}

/// Threads that look for the next call, that fall asleep, and that sleep.
void calls_after_pauses() {
    for (const int microseconds : {0, 0, 0, 30, 0, 50, 0, 70, 500, 0, 0}) {
        for (int i = 0; i < 50; ++i) {
            std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
            covers(200, 3, 3);
        }
    }
}

double processor_seconds() {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void idle_threads_sleep() {
    for (int i = 0; i < 100; ++i)
        covers(200, 3, 3);
    const double before = processor_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    check(processor_seconds() - before < 0.1, "threads without work take no processor time");
}

void survives_fork() {
    for (int round = 0; round < 20; ++round) {
        std::atomic<bool> stop = false;
        std::thread busy([&] {
            while (!stop)
                parallel_for(64, 1, 3, [](std::int64_t, std::int64_t) {});
        });
        const pid_t child = fork();
        if (child == 0) {
            alarm(20);
            covers(1000, 10, 4);
            _exit(0);
        }
        int status = 1;
        waitpid(child, &status, 0);
        stop = true;
        busy.join();
        check(status == 0, "a child of fork has threads of its own");
    }
}

void reads_the_environment() {
    setenv("WINDECK_NUM_THREADS", "3", 1);
    check(default_threads() == 3);
    for (const char* wrong : {"0", "-1", "two", "2x", "100000"}) {
        setenv("WINDECK_NUM_THREADS", wrong, 1);
        check_throws<std::invalid_argument>([] { default_threads(); }, "from 1 to 1024");
    }
    unsetenv("WINDECK_NUM_THREADS");
    check(default_threads() >= 1);
}

}  // namespace

int main() {
    for (const std::int64_t count : {0, 1, 2, 7, 1000}) {
        for (const int threads : {0, 1, 2, 5}) {
            covers(count, 1, threads);
            covers(count, 3, threads);
            covers(count, 5000, threads);
        }
    }
    throws_the_first_error();
    nests();
    many_callers();
    calls_after_pauses();
    idle_threads_sleep();
    // QEMU 7.2 fails where a child of a process with threads starts a thread.
    if (std::getenv("WINDECK_EMULATED") == nullptr) survives_fork();
    reads_the_environment();
}
