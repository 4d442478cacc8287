#include "windeck/base/parallel.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <charconv>
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

/// One call of parallel_for, on the stack of its caller.
struct Job {
    std::int64_t count;
    std::int64_t grain;
    const RangeBody& body;
    std::atomic<std::int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error{};  // written once, by the thread that set `failed`
    int helpers = 0;             // threads inside work(), guarded by the pool's mutex

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
        {
            const std::lock_guard lock(mutex_);
            while (threads_ < helpers && start_thread())
                ++threads_;
            for (int i = 0; i < std::min(helpers, threads_); ++i)
                calls_.push_back(&job);
        }
        wake_.notify_all();
        job.work();
        std::unique_lock lock(mutex_);
        std::erase(calls_, &job);  // no other thread may begin it
        done_.wait(lock, [&] { return job.helpers == 0; });
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
        for (;;) {
            wake_.wait(lock, [this] { return !calls_.empty(); });
            Job& job = *calls_.front();
            calls_.pop_front();
            ++job.helpers;
            lock.unlock();
            job.work();
            lock.lock();
            if (--job.helpers == 0) done_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_;
    std::condition_variable done_;
    std::deque<Job*> calls_;
    int threads_ = 0;
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
    const std::int64_t pieces = count / grain + (count % grain != 0 ? 1 : 0);
    const std::int64_t helpers = std::min<std::int64_t>(std::min(threads, max_threads), pieces) - 1;
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
