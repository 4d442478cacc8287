#include <cstdint>
#include <memory>
#include <stdexcept>

#include "check.hpp"
#include "numbers.hpp"
#include "windeck/packing/packing.hpp"

using namespace windeck;

namespace {

void part_orders() {
    for (int round = 0; round < 500; ++round) {
        Numbers sizes(at(draw(1, 60)));
        for (auto& size : sizes)
            size = draw(0, 2) == 0 ? 0 : draw(1, 30);
        const std::int64_t every = draw(1, 20);
        const PartOrder order(std::make_shared<const Numbers>(sizes), 3, 4, every);
        const Permutation plain(sizes.size(), 3, 4);
        std::int64_t position = 0;
        for (std::int64_t place = 0; place < order.parts(); ++place) {
            const auto part =
                static_cast<std::int64_t>(plain.at(static_cast<std::uint64_t>(place)));
            check(order.at(place) == part && order.index_of(part) == place, "at and index_of");
            check(order.before(place) == position, "before");
            for (std::int64_t within = 0; within < sizes[at(part)]; ++within, ++position) {
                const auto found = order.find(position);
                check(found.place == place && found.within == within, "find");
            }
        }
        check(order.total() == position && order.before(order.parts()) == position, "total");
    }
}

void pieces_of_rows() {
    const Numbers sizes{5, 0, 1, 9, 0, 2};
    const PartOrder order(std::make_shared<const Numbers>(sizes), 1, 2);
    Numbers of, within;  // each position, one by one
    for (std::int64_t place = 0; place < order.parts(); ++place) {
        for (std::int64_t i = 0; i < sizes[at(order.at(place))]; ++i) {
            of.push_back(order.at(place));
            within.push_back(i);
        }
    }
    for (std::int64_t length = 1; length <= 17; ++length) {
        const std::int64_t samples = (17 - length) / 2 + 1;
        Numbers indices;
        for (std::int64_t i = 0; i < 2 * samples; ++i)
            indices.push_back(draw(0, samples - 1));
        Numbers parts;
        const Pieces pieces = order.pieces(indices, 2, length, samples, parts);
        for (std::size_t r = 0; r < indices.size(); ++r) {
            std::int64_t position = 2 * indices[r];
            for (std::int64_t p = pieces.row_offsets[r]; p < pieces.row_offsets[r + 1]; ++p) {
                for (std::int64_t i = 0; i < pieces.lengths[at(p)]; ++i, ++position) {
                    check(parts[at(pieces.document_run_of[at(p)])] == of[at(position)], "part");
                    check(pieces.starts[at(p)] + i == within[at(position)], "start");
                }
            }
            check(position == 2 * indices[r] + length, "length");
        }
        check_throws<std::out_of_range>(
            [&] { (void)order.pieces(Numbers{samples}, 2, length, samples, parts); },
            "is out of range for");
    }
}

void refuses() {
    using std::invalid_argument;
    const auto parts = [](Numbers sizes, std::int64_t every) {
        return [=] { PartOrder(std::make_shared<const Numbers>(sizes), 0, 0, every); };
    };
    check_throws<invalid_argument>(parts({}, 1), "sizes is empty");
    check_throws<invalid_argument>(parts({1, -2}, 1), "part 1 has size -2");
    check_throws<invalid_argument>(parts({1}, 0), "every is 0, expected 1 or more");
    check_throws<std::overflow_error>(parts({INT64_MAX, 1}, 1), "more than 2^63 - 1");
}

}  // namespace

int main() {
    part_orders();
    pieces_of_rows();
    refuses();
}
