#include <vector>

#include "check.hpp"
#include "numbers.hpp"
#include "windeck/packing/packing.hpp"

using namespace windeck;

namespace {

/// Best fit by a search of all bins.
Bins slow_fit(const Numbers& lengths, std::int64_t capacity, std::int64_t overlap) {
    struct Bin {
        std::int64_t room;
        Numbers starts, lengths;
    };
    std::vector<Bin> bins;
    std::int64_t start = 0;
    for (const std::int64_t length : lengths) {
        std::int64_t from = 0;
        for (; length - from >= capacity; from += capacity - overlap)
            bins.push_back({0, {start + from}, {capacity}});
        const std::int64_t rest = length - from;
        if (rest > (from > 0 ? overlap : 0)) {
            Bin* best = nullptr;
            for (Bin& bin : bins) {
                if (bin.room >= rest && (best == nullptr || bin.room <= best->room)) best = &bin;
            }
            if (best == nullptr) best = &bins.emplace_back(Bin{capacity, {}, {}});
            best->room -= rest;
            best->starts.push_back(start + from);
            best->lengths.push_back(rest);
        }
        start += length;
    }
    Bins out;
    for (const Bin& bin : bins) {
        out.starts.insert(out.starts.end(), bin.starts.begin(), bin.starts.end());
        out.lengths.insert(out.lengths.end(), bin.lengths.begin(), bin.lengths.end());
        out.offsets.push_back(static_cast<std::int64_t>(out.starts.size()));
    }
    return out;
}

void fits() {
    for (int round = 0; round < 2000; ++round) {
        const std::int64_t overlap = draw(0, 1);
        const std::int64_t capacity = draw(overlap + 1, 30);
        Numbers lengths(at(draw(0, 60)));
        for (auto& length : lengths)
            length = draw(0, 9) == 0 ? draw(0, 100) : draw(0, capacity);
        const Bins fast = best_fit(lengths, capacity, overlap);
        const Bins slow = slow_fit(lengths, capacity, overlap);
        check(fast.offsets == slow.offsets && fast.starts == slow.starts &&
                  fast.lengths == slow.lengths,
              "best fit");
    }
}

}  // namespace

int main() {
    fits();
}
