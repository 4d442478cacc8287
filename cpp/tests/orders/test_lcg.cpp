#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "windeck/orders/lcg.hpp"

namespace windeck {
namespace {

std::vector<std::int64_t> draw(Lcg& lcg, std::size_t count) {
    std::vector<std::int64_t> out(count);
    lcg.draw(out);
    return out;
}

void draws_each_value_once_a_period(std::uint64_t size) {
    Lcg lcg(size, 5, 7, 3);
    const std::uint64_t start = lcg.state();
    std::vector<bool> seen(size);
    for (const std::int64_t value : draw(lcg, size)) {
        const auto v = static_cast<std::uint64_t>(value);
        check(v < size && !seen[v], "once");
        seen[v] = true;
    }
    const std::int64_t first = draw(lcg, 1)[0];
    Lcg again(size, 5, 7, start);
    check(draw(again, 1)[0] == first, "the period is that of the next power of two");
}

void bulk_is_one_by_one(std::uint64_t size, std::size_t count) {
    Lcg bulk(size, 1664525, 1013904223, 99), single = bulk;
    for (const std::int64_t value : draw(bulk, count)) {
        check(draw(single, 1)[0] == value, "the same values");
        check(single.state() == static_cast<std::uint64_t>(value), "the state is the last value");
    }
    check(bulk == single, "the same state");
}

void jump_is_many_steps(std::uint64_t size) {
    const std::uint64_t mask = Lcg(size).mask();
    std::uint64_t state = 1 & mask;
    for (std::uint64_t steps = 0; steps < 70; ++steps) {
        Lcg lcg(size, 13, 5, 1);
        lcg.jump(steps);
        check(lcg.state() == state, "ahead");
        lcg.jump(0 - steps);
        check(lcg.state() == (1 & mask), "and back");
        state = (13 * state + 5) & mask;
    }
}

}  // namespace
}  // namespace windeck

int main() {
    using namespace windeck;
    for (std::uint64_t size = 1; size <= 300; ++size) {
        draws_each_value_once_a_period(size);
        bulk_is_one_by_one(size, 50);
        jump_is_many_steps(size);
    }
    bulk_is_one_by_one(1'000'003, 5000);
    bulk_is_one_by_one(Lcg::max_size, 500);
    jump_is_many_steps(Lcg::max_size);

    // The first documents of fms-fsdp's order for 10 documents, rank 0, seed 42: m = 16, c = 85.
    Lcg documents(10, 5, 2 * 42 + 1, 42);
    check(draw(documents, 10) == std::vector<std::int64_t>{7, 8, 6, 3, 4, 9, 2, 0, 5, 1});

    check_throws<std::invalid_argument>([] { Lcg(0); }, "size is 0, expected");
    check_throws<std::invalid_argument>([] { Lcg(5, 7); }, "multiplier is 7, expected 1 modulo 4");
    check_throws<std::invalid_argument>([] { Lcg(5, 5, 4); }, "increment is 4, expected an odd");
}
