#include <limits>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "numbers.hpp"
#include "windeck/base/cumulative.hpp"

using namespace windeck;

namespace {

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

/// Every position of random sizes, many of them 0, against walking through the parts.
void random_sizes() {
    for (int round = 0; round < 2000; ++round) {
        Numbers sizes(at(draw(0, 20)));
        for (std::int64_t& size : sizes)
            size = draw(0, 2) == 0 ? 0 : draw(0, draw(0, 4) == 0 ? 300 : 5);
        const Cumulative sums(sizes);
        check(sums.parts() == static_cast<std::int64_t>(sizes.size()), "parts");
        Numbers parts;
        Numbers within;
        for (std::size_t part = 0; part < sizes.size(); ++part) {
            check(sums.before(static_cast<std::int64_t>(part)) ==
                      static_cast<std::int64_t>(parts.size()),
                  "before");
            for (std::int64_t i = 0; i < sizes[part]; ++i) {
                parts.push_back(static_cast<std::int64_t>(part));
                within.push_back(i);
            }
        }
        check(sums.total() == static_cast<std::int64_t>(parts.size()), "total");
        Numbers positions(parts.size());
        for (std::size_t i = 0; i < positions.size(); ++i) {
            positions[i] = static_cast<std::int64_t>(i);
            check(sums.find(positions[i]) == parts[i], "find");
        }
        Numbers found(parts.size());
        Numbers inside(parts.size());
        sums.find(positions, found.data(), inside.data());
        check(found == parts && inside == within, "find many");
    }
}

void large_sizes() {
    const Cumulative sums(Numbers{0, largest / 2, 0, largest / 2, 0, 0});
    check(sums.total() == largest - 1, "total");
    check(sums.find(0) == 1 && sums.find(largest / 2 - 1) == 1, "the first part");
    check(sums.find(largest / 2) == 3 && sums.find(largest - 2) == 3, "the second part");
    check_throws<std::overflow_error>([] { Cumulative(Numbers{largest, 1}); },
                                      "the sizes add up to more than 2^63 - 1");
    check(Cumulative().total() == 0 && Cumulative(Numbers{}).parts() == 0, "nothing");
}

}  // namespace

int main() {
    random_sizes();
    large_sizes();
}
