#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "windeck/packing/packing.hpp"

namespace windeck {
namespace {

/// A piece and the bin it is in, in the order of the documents.
struct PlacedPiece {
    std::int64_t bin;
    std::int64_t start;
    std::int64_t length;
};

class BestFitPacker {
  public:
    BestFitPacker(std::int64_t capacity, std::int64_t overlap)
        : capacity_(capacity), overlap_(overlap) {}

    void add(std::int64_t start, std::int64_t length) {
        std::int64_t from = 0;
        for (; length - from >= capacity_; from += capacity_ - overlap_)
            placed_.push_back({bins_++, start + from, capacity_});
        // Tokens that two pieces share were served as targets of the first.
        const std::int64_t rest = length - from;
        if (rest > (from > 0 ? overlap_ : 0)) place(start + from, rest);
    }

    Bins finish() && {
        Bins out;
        out.offsets.assign(static_cast<std::size_t>(bins_) + 1, 0);
        for (const PlacedPiece& piece : placed_)
            ++out.offsets[static_cast<std::size_t>(piece.bin) + 1];
        for (std::size_t b = 1; b < out.offsets.size(); ++b)
            out.offsets[b] += out.offsets[b - 1];
        std::vector<std::int64_t> next(out.offsets.begin(), out.offsets.end() - 1);
        out.starts.resize(placed_.size());
        out.lengths.resize(placed_.size());
        for (const PlacedPiece& piece : placed_) {
            const auto to = static_cast<std::size_t>(next[static_cast<std::size_t>(piece.bin)]++);
            out.starts[to] = piece.start;
            out.lengths[to] = piece.length;
        }
        return out;
    }

  private:
    void place(std::int64_t start, std::int64_t length) {
        // Bins by (room, last opened first).
        const auto fitting = open_.lower_bound({length, first_});
        std::pair<std::int64_t, std::int64_t> bin{capacity_, -bins_};
        if (fitting != open_.end()) {
            bin = *fitting;
            open_.erase(fitting);
        } else {
            ++bins_;
        }
        placed_.push_back({-bin.second, start, length});
        bin.first -= length;
        if (bin.first > 0) open_.insert(bin);
    }

    static constexpr std::int64_t first_ = INT64_MIN;

    std::int64_t capacity_;
    std::int64_t overlap_;
    std::int64_t bins_ = 0;
    std::set<std::pair<std::int64_t, std::int64_t>> open_;  // (room, minus the bin's number)
    std::vector<PlacedPiece> placed_;
};

}  // namespace

Bins best_fit(std::span<const std::int64_t> lengths, std::int64_t capacity, std::int64_t overlap) {
    BestFitPacker packer(capacity, overlap);
    std::int64_t start = 0;
    for (const std::int64_t length : lengths) {
        packer.add(start, length);
        start += length;
    }
    return std::move(packer).finish();
}

}  // namespace windeck
