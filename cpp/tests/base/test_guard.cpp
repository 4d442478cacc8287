#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.hpp"
#include "windeck/base/guard.hpp"
#include "windeck/base/parallel.hpp"

using namespace windeck;

namespace {

constexpr std::size_t page_bytes = 1 << 16;  // at least a page, on any machine

/// A mapped file of two parts, of which only the first stays.
class Cut {
  public:
    Cut() : file_(std::tmpfile()) {
        check(file_ != nullptr && ftruncate(fileno(file_), 2 * page_bytes) == 0, "a file");
        void* const mapped = mmap(nullptr, 2 * page_bytes, PROT_READ, MAP_SHARED, fileno(file_), 0);
        check(mapped != MAP_FAILED, "mmap");
        data_ = static_cast<const volatile char*>(mapped);
        check(ftruncate(fileno(file_), page_bytes) == 0, "ftruncate");
    }
    ~Cut() {
        munmap(const_cast<char*>(data_), 2 * page_bytes);
        std::fclose(file_);
    }
    Cut(const Cut&) = delete;
    Cut& operator=(const Cut&) = delete;

    char good() const { return data_[0]; }
    char bad() const { return data_[page_bytes]; }

  private:
    std::FILE* file_;
    const volatile char* data_;
};

struct sigaction current() {
    struct sigaction action{};
    sigaction(SIGBUS, nullptr, &action);
    return action;
}

void set(void (*handler)(int)) {
    struct sigaction action{};
    action.sa_handler = handler;
    sigaction(SIGBUS, &action, nullptr);
}

void faults_are_told(const Cut& file) {
    int reads = 0;
    check(guarded([&] { reads += file.good() + 1; }) && reads == 1, "a good read");
    check(!guarded([&] { reads += file.bad() + 1; }) && reads == 1, "a bad read");
    check(!guarded([&] { reads += file.bad() + 1; }) && reads == 1, "a bad read again");
    bool inner = true;
    check(guarded([&] { inner = guarded([&] { reads += file.bad(); }); }) && !inner, "nested");
    check(!guarded([&] {
        inner = guarded([&] { reads += file.good(); });
        reads += file.bad();
    }) && inner,
          "a fault after an inner call is the outer one's");
    check_throws<std::runtime_error>([] { guarded([] { throw std::runtime_error("thrown"); }); },
                                     "thrown");
    check(!guarded([&] { reads += file.bad(); }), "after an exception");
}

/// Pool threads block signals, and a blocked fault would end the process.
void in_threads(const Cut& file) {
    std::atomic<int> caught{0};
    std::atomic<int> fine{0};
    parallel_for(4000, 1, 4, [&](std::int64_t begin, std::int64_t) {
        char value = 0;
        const bool good = guarded([&] { value = begin % 2 == 0 ? file.good() : file.bad(); });
        (good ? fine : caught) += 1 + value;
    });
    check(caught == 2000 && fine == 2000, "in the pool");
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 500; ++i) {
                char value = 0;
                caught += guarded([&] { value = file.bad(); }) ? 0 : 1 + value;
            }
        });
    }
    for (std::thread& thread : threads)
        thread.join();
    check(caught == 4000, "in threads");
    check(current().sa_handler == SIG_DFL, "the handler is gone when no one is in flight");
}

void a_blocked_signal_stays_blocked(const Cut& file) {
    sigset_t bus;
    sigset_t after;
    sigemptyset(&bus);
    sigaddset(&bus, SIGBUS);
    pthread_sigmask(SIG_BLOCK, &bus, nullptr);
    char value = 0;
    check(!guarded([&] { value = file.bad(); }) && value == 0, "caught though blocked");
    pthread_sigmask(SIG_UNBLOCK, &bus, &after);
    check(sigismember(&after, SIGBUS) == 1, "the mask is as it was");
}

volatile std::sig_atomic_t heard = 0;

void handlers_are_put_back(const Cut& file) {
    const auto handler = [](int) { heard = heard + 1; };
    set(handler);
    char value = 0;
    check(!guarded([&] { value = file.bad(); }) && value == 0 && heard == 0, "the fault is ours");
    check(current().sa_handler == +handler, "the handler before is back");
    check(guarded([] { std::raise(SIGBUS); }) && heard == 1, "a signal that is sent is not ours");
    const auto other = [](int) { heard = 100; };
    check(guarded([&] { set(other); }) && current().sa_handler == +other,
          "a handler that was set meanwhile stays");
    set(SIG_DFL);
}

/// The status of a child process that runs `action`, as from waitpid.
template <typename Action>
int ended(Action action) {
    const pid_t child = fork();
    check(child >= 0, "fork");
    if (child == 0) {
        action();
        _exit(0);
    }
    int status = 0;
    check(waitpid(child, &status, 0) == child, "waitpid");
    return status;
}

void others_faults_end_as_before(const Cut& file) {
    const auto fault_beside_a_guard = [&] {
        std::atomic<bool> inside{false};
        std::thread guard([&] {
            guarded([&] {
                inside = true;
                for (;;)
                    pause();
            });
        });
        while (!inside)
            std::this_thread::yield();
        std::putchar(file.bad());
        _exit(1);
    };
    int status = ended(fault_beside_a_guard);
    check(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS, "killed by the fault");
    status = ended([&] {
        set(SIG_IGN);
        fault_beside_a_guard();
    });
    check(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS, "a fault cannot be ignored");
    status = ended([&] {
        set([](int) { _exit(7); });
        fault_beside_a_guard();
    });
    check(WIFEXITED(status) && WEXITSTATUS(status) == 7, "the handler before was called");
    status = ended([] { guarded([] { std::raise(SIGBUS); }); });
    check(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS, "killed by the signal sent");
    status = ended([&] {
        char value = 0;
        _exit(guarded([&] { value = file.bad(); }) ? 1 + value : 3);
    });
    check(WIFEXITED(status) && WEXITSTATUS(status) == 3, "a child of fork guards too");
}

}  // namespace

int main() {
    const Cut file;
    set(SIG_DFL);
    others_faults_end_as_before(file);
    faults_are_told(file);
    in_threads(file);
    a_blocked_signal_stays_blocked(file);
    handlers_are_put_back(file);
}
