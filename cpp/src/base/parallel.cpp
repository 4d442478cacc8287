#include "windeck/base/parallel.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace windeck {
namespace {

constexpr int max_threads = 1024;

using Clock = std::chrono::steady_clock;

/// How long a thread looks for work, or for the end of a call, before it sleeps: about as long as
/// it takes to wake a sleeping thread.
constexpr Clock::duration spin_time = std::chrono::microseconds(50);

/// Tell the processor that this is a loop that waits.
void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

/// Wait until `ready()`, without sleeping and for spin_time at most.
template <typename Ready>
void spin_until(const Ready& ready) {
    const auto end = Clock::now() + spin_time;
    do {
        for (int i = 0; i < 16; ++i) {
            if (ready()) return;
            pause();
        }
        std::this_thread::yield();  // to a thread that works, if it is on the same processor
    } while (Clock::now() < end);
}

/// One call of parallel_for, on the stack of its caller.
struct Job {
    std::int64_t count;
    std::int64_t grain;
    const RangeBody& body;
    std::atomic<std::int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error{};   // written once, by the thread that set `failed`
    Clock::time_point posted{};   // when it was given to the pool
    std::atomic<int> helpers{0};  // threads inside work(), changed with the pool's mutex locked

    void work() noexcept {
        while (!failed.load(std::memory_order_relaxed)) {
            const std::int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
            if (begin >= count) return;
            try {
                body(begin, std::min(count, begin + grain));
            } catch (...) {
                if (!failed.exchange(true)) error = std::current_exception();
            }
        }
    }
};

/// The threads. Never destroyed: they end with the process.
class ThreadPool {
  public:
    void run(Job& job, int helpers) {
        int sleepers = 0;  // to wake: threads that spin find the call themselves
        {
            const std::lock_guard lock(mutex_);
            while (threads_ < helpers && start_thread())
                ++threads_;
            job.posted = Clock::now();
            for (int i = 0; i < std::min(helpers, threads_); ++i)
                calls_.push_back(&job);
            sleepers = std::min(helpers, static_cast<int>(calls_.size()) - spinning_);
        }
        posted_.fetch_add(1);  // after the lock is free: who spins takes it at once
        for (int i = 0; i < sleepers; ++i)
            wake_.notify_one();
        job.work();
        {
            const std::lock_guard lock(mutex_);
            std::erase(calls_, &job);  // no other thread may begin it
        }
        const auto done = [&] { return job.helpers.load(std::memory_order_acquire) == 0; };
        if (max_spinning_ > 0) spin_until(done);
        if (done()) return;
        std::unique_lock lock(mutex_);
        done_.wait(lock, done);
    }

  private:
    bool start_thread() {
        sigset_t all;
        sigset_t before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        bool started = true;
        try {
            std::thread([this] { serve(); }).detach();
        } catch (const std::system_error&) {
            started = false;  // no more threads available: continue with fewer
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return started;
    }

    [[noreturn]] void serve() {
        std::unique_lock lock(mutex_);
        bool soon = false;  // whether the last call came within spin_time
        for (;;) {
            const auto idle = Clock::now();
            if (calls_.empty() && soon && spinning_ < max_spinning_) spin(lock);
            wake_.wait(lock, [this] { return !calls_.empty(); });
            Job& job = *calls_.front();
            soon = job.posted - idle < spin_time;
            calls_.pop_front();
            job.helpers.fetch_add(1);
            lock.unlock();
            job.work();
            lock.lock();
            if (job.helpers.fetch_sub(1) == 1) done_.notify_all();  // the job may be gone now
        }
    }

    /// Look for a call for a while. The thread counts as spinning until it holds the lock again, so
    /// a call that did not wake it is in the queue then.
    void spin(std::unique_lock<std::mutex>& lock) {
        const std::uint64_t before = posted_.load();
        ++spinning_;
        lock.unlock();
        spin_until([&] { return posted_.load() != before; });
        lock.lock();
        --spinning_;
    }

    std::mutex mutex_;
    std::condition_variable wake_;
    std::condition_variable done_;
    std::deque<Job*> calls_;
    int threads_ = 0;
    int spinning_ = 0;
    /// One processor is left to the caller.
    const int max_spinning_ = static_cast<int>(std::thread::hardware_concurrency()) - 1;
    std::atomic<std::uint64_t> posted_{0};  // calls so far, to be watched without the lock
};

std::atomic<ThreadPool*> current_pool{nullptr};

/// A child of fork has no threads of its parent, and their lock may stay locked: it drops the pool
/// and makes a new one. Registered at load, before there can be threads.
[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { current_pool.store(nullptr); });

/// The pool of this process.
ThreadPool& thread_pool() {
    ThreadPool* found = current_pool.load();
    if (found != nullptr) return *found;
    auto* const fresh = new ThreadPool;
    if (current_pool.compare_exchange_strong(found, fresh)) return *fresh;
    delete fresh;
    return *found;
}

}  // namespace

void parallel_for(std::int64_t count, std::int64_t grain, int threads, const RangeBody& body) {
    const std::int64_t portions = count / grain + (count % grain != 0 ? 1 : 0);
    const std::int64_t helpers =
        std::min<std::int64_t>(std::min(threads, max_threads), portions) - 1;
    Job job{.count = count, .grain = grain, .body = body};
    if (helpers > 0) {
        thread_pool().run(job, static_cast<int>(helpers));
    } else {
        job.work();
    }
    if (job.error) std::rethrow_exception(job.error);
}

int default_threads() {
    const char* const requested = std::getenv("WINDECK_NUM_THREADS");
    if (requested == nullptr || *requested == '\0') {
        return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, max_threads);
    }
    int number = 0;
    const char* const end = requested + std::strlen(requested);
    const auto [stopped, error] = std::from_chars(requested, end, number);
    if (error != std::errc() || stopped != end || number < 1 || number > max_threads) {
        throw std::invalid_argument("WINDECK_NUM_THREADS is '" + std::string(requested) +
                                    "', expected an integer from 1 to 1024");
    }
    return number;
}

}  // namespace windeck
