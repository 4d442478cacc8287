#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "check.hpp"
#include "windeck/base/pool.hpp"

using namespace windeck;

namespace {

void a_slab_comes_back() {
    Slab* const first = take_slab(100'000);
    check(reinterpret_cast<std::uintptr_t>(first->data) % slab_alignment == 0, "aligned");
    check(first->capacity >= 100'000, "large enough");
    Slab* const second = take_slab(100'000);
    check(first->data != second->data, "never handed out twice");
    const PoolStats before = pool_stats();
    check(before.live == 2 && before.free == 0, "two in use");
    std::byte* const data = first->data;
    give_slab(first);
    check(pool_stats().free == 1, "one waits");
    Slab* const again = take_slab(100'100);  // nearly the same size
    check(again->data == data, "used again");
    check(pool_stats().allocations == before.allocations, "nothing was allocated");
    give_slab(again);
    give_slab(second);
}

void a_steady_loop_allocates_nothing() {
    give_slab(take_slab(5 << 20));
    const PoolStats before = pool_stats();
    for (int i = 0; i < 10'000; ++i)
        give_slab(take_slab(5 << 20));
    check(pool_stats().allocations == before.allocations, "steady");
}

void what_is_not_wanted_is_freed() {
    std::vector<Slab*> many;
    for (int i = 0; i < 50; ++i)
        many.push_back(take_slab(1 << 20));
    for (Slab* slab : many)
        give_slab(slab);
    check(pool_stats().free >= 50, "kept for a while");
    for (int i = 0; i < 17000; ++i)
        give_slab(take_slab(2 << 20));
    check(pool_stats().free <= 1, "freed when no one asks for it");
    trim_pool();
    check(pool_stats().free == 0 && pool_stats().free_bytes == 0, "trimmed");
}

void too_much_is_an_error() {
    const PoolStats before = pool_stats();
    check_throws<std::bad_alloc>([] { take_slab(SIZE_MAX); }, "");
    check_throws<std::bad_alloc>([] { take_slab(std::size_t{1} << 62); }, "");
    check(pool_stats().live == before.live, "nothing half done");
}

void threads_never_share() {
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
        threads.emplace_back([t] {
            for (int i = 0; i < 2000; ++i) {
                Slab* const slab = take_slab(static_cast<std::size_t>(4096 * (1 + i % 3)));
                std::memset(slab->data, t, 4096);
                for (int k = 0; k < 4096; k += 512)
                    check(slab->data[k] == std::byte(t), "alone");
                give_slab(slab);
            }
        });
    }
    for (auto& thread : threads)
        thread.join();
    check(pool_stats().live == 0, "all came back");
}

void survives_fork() {
    std::atomic<bool> stop = false;
    std::thread busy([&] {
        while (!stop)
            give_slab(take_slab(1 << 16));
    });
    for (int round = 0; round < 50; ++round) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(20);
            for (int i = 0; i < 100; ++i)
                give_slab(take_slab(1 << 16));
            _exit(0);
        }
        int status = 1;
        waitpid(child, &status, 0);
        check(status == 0, "a child can use the pool");
    }
    stop = true;
    busy.join();
}

}  // namespace

int main() {
    a_slab_comes_back();
    a_steady_loop_allocates_nothing();
    what_is_not_wanted_is_freed();
    too_much_is_an_error();
    threads_never_share();
    survives_fork();
}
