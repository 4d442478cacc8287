#include <thread>
#include <vector>

#include "check.hpp"
#include "quicker.hpp"

namespace {

using namespace windeck;

// Both in turn, then the one that cost least at its best.
void test_the_least_cost_decides() {
    for (const std::size_t better : {0U, 1U}) {
        Quicker quicker;
        for (std::size_t i = 0; i < 2 * Quicker::trials; ++i) {
            check(quicker.way() == i % 2, "in turn");
            // The better way is disturbed but for its last turn.
            const bool is_last = i >= 2 * (Quicker::trials - 1);
            quicker.took(i % 2, i % 2 != better ? 2.0 : is_last ? 1.0 : 9.0);
        }
        check(quicker.way() == better, "the quicker one");
        quicker.took(1 - better, 0.1);
        check(quicker.way() == better, "and it stays");
    }
    Quicker same;
    for (std::size_t i = 0; i < 2 * Quicker::trials; ++i)
        same.took(i % 2, 3.0);
    check(same.way() == 0, "of equals the first");
}

// Calls that go on at once, and calls that never say what they took.
void test_turns_are_those_of_what_was_said() {
    Quicker quicker;
    check(quicker.way() == 0 && quicker.way() == 0, "nothing was said");
    quicker.took(0, 1.0);
    quicker.took(0, 1.0);
    check(quicker.way() == 1 && quicker.way() == 1, "the other's turn until it is as many");
}

void test_several_threads() {
    Quicker quicker;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            for (int round = 0; round < 1000; ++round) {
                const std::size_t way = quicker.way();
                quicker.took(way, way == 1 ? 1.0 : 2.0);
            }
        });
    }
    for (std::thread& thread : threads)
        thread.join();
    check(quicker.way() == 1, "the quicker one");
}

}  // namespace

int main() {
    test_the_least_cost_decides();
    test_turns_are_those_of_what_was_said();
    test_several_threads();
}
