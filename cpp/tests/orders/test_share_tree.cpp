#include <cstdint>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "windeck/orders/share_tree.hpp"

namespace windeck {
namespace {

constexpr std::int64_t last = std::numeric_limits<std::int64_t>::max();

void counts_one_by_one(const std::vector<std::int64_t>& sizes, std::int64_t positions) {
    const ShareTree tree(sizes);
    const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    check(tree.total() == total && tree.parts() == sizes.size(), "the sizes");
    std::vector<std::int64_t> served(sizes.size()), counts(sizes.size());
    for (std::int64_t position = 0; position < positions; ++position) {
        tree.count_before(position, counts);
        check(counts == served, "counts before a position");
        std::int64_t part = 0, number = 0, back = 0;
        tree.locate({&position, 1}, &part, &number);
        const auto mine = static_cast<std::size_t>(part);
        check(number == served[mine], "the part's own position");
        tree.position_of(mine, {&number, 1}, last, &back);
        check(back == position, "the inverse");
        ++served[mine];
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            const std::int64_t error = served[i] * total - (position + 1) * sizes[i];
            check(error < 2 * total && -error < 2 * total, "within two of the exact share");
        }
    }
}

void far_positions_lead_back(const std::vector<std::int64_t>& sizes) {
    const ShareTree tree(sizes);
    for (std::int64_t step = 0; step < 200; ++step) {
        const std::int64_t position = last - step * 999'999'999'989;
        std::int64_t part = 0, number = 0, back = 0;
        tree.locate({&position, 1}, &part, &number);
        const auto mine = static_cast<std::size_t>(part);
        tree.position_of(mine, {&number, 1}, last, &back);
        check(back == position, "the inverse, far away");
        tree.position_of(mine, {&number, 1}, position - 1, &back);
        check(back == -1, "above the most");
    }
}

}  // namespace
}  // namespace windeck

int main() {
    using namespace windeck;
    for (std::int64_t a = 0; a < 12; ++a) {
        for (std::int64_t b = 0; b < 12; ++b) {
            if (a + b != 0) counts_one_by_one({a, 0, b, 3}, 3 * (a + b + 3) + 1);
        }
    }
    counts_one_by_one({7}, 20);
    counts_one_by_one(std::vector<std::int64_t>(100, 1), 250);
    counts_one_by_one({6273, 12000, 34, 880}, 4000);
    far_positions_lead_back({6273, 12000, 34, 880});
    far_positions_lead_back({1, ShareTree::max_total - 1});
    far_positions_lead_back({ShareTree::max_total / 3, ShareTree::max_total / 2, 12345, 1});
    const std::vector<std::int64_t> none, zeros{0, 0}, negative{1, -1},
        many{ShareTree::max_total, 1};
    check_throws<std::invalid_argument>([&] { ShareTree tree(none); }, "sum of the sizes is 0");
    check_throws<std::invalid_argument>([&] { ShareTree tree(zeros); }, "sum of the sizes is 0");
    check_throws<std::invalid_argument>([&] { ShareTree tree(negative); }, "sizes[1] is -1");
    check_throws<std::invalid_argument>([&] { ShareTree tree(many); }, "at most 2^62");
}
