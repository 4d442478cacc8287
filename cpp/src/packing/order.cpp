#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "windeck/packing/packing.hpp"

namespace windeck {
namespace {

constexpr std::int64_t block = 1024;

std::size_t to_size(std::int64_t position) {
    return static_cast<std::size_t>(position);
}

std::uint64_t checked_parts(const std::vector<std::int64_t>& sizes) {
    if (sizes.empty()) throw std::invalid_argument("sizes is empty, expected one size or more");
    return sizes.size();
}

}  // namespace

PartOrder::PartOrder(Sizes sizes, std::uint64_t seed, std::uint64_t epoch, std::int64_t every)
    : sizes_(std::move(sizes)), order_(checked_parts(*sizes_), seed, epoch), every_(every) {
    if (every < 1) {
        throw std::invalid_argument("every is " + std::to_string(every) + ", expected 1 or more");
    }
    sums_.reserve(to_size((parts() - 1) / every + 1));
    std::array<std::int64_t, block> part;
    for (std::int64_t begin = 0; begin < parts(); begin += block) {
        const std::int64_t count = std::min(block, parts() - begin);
        order_.slice(static_cast<std::uint64_t>(begin), {part.data(), to_size(count)});
        for (std::int64_t i = 0; i < count; ++i) {
            if ((begin + i) % every == 0) sums_.push_back(total_);
            const std::int64_t size = (*sizes_)[to_size(part[to_size(i)])];
            if (size < 0) {
                throw std::invalid_argument("part " + std::to_string(part[to_size(i)]) +
                                            " has size " + std::to_string(size) +
                                            ", expected 0 or more");
            }
            if (__builtin_add_overflow(total_, size, &total_)) {
                throw std::overflow_error("the sizes add up to more than 2^63 - 1");
            }
        }
    }
}

std::int64_t PartOrder::at(std::int64_t place) const {
    return static_cast<std::int64_t>(order_.at(static_cast<std::uint64_t>(place)));
}

std::int64_t PartOrder::index_of(std::int64_t part) const {
    return static_cast<std::int64_t>(order_.index_of(static_cast<std::uint64_t>(part)));
}

std::int64_t PartOrder::size_at(std::int64_t place) const {
    return (*sizes_)[to_size(at(place))];
}

std::int64_t PartOrder::before(std::int64_t place) const {
    if (place == parts()) return total_;
    const std::int64_t sample = place / every_;
    std::int64_t sum = sums_[to_size(sample)];
    for (std::int64_t p = sample * every_; p < place; ++p)
        sum += size_at(p);
    return sum;
}

PartOrder::Location PartOrder::find(std::int64_t position) const {
    const auto after = std::ranges::upper_bound(sums_, position);
    std::int64_t place = (after - sums_.begin() - 1) * every_;
    position -= *(after - 1);
    // The last of equal sums was found, so only between samples can there be parts to pass.
    for (std::int64_t size = 0; every_ > 1 && position >= (size = size_at(place)); ++place)
        position -= size;
    return {place, position};
}

Pieces PartOrder::pieces(std::span<const std::int64_t> indices, std::int64_t stride,
                         std::int64_t length, std::int64_t samples,
                         std::vector<std::int64_t>& parts_used) const {
    Pieces out;
    out.row_offsets.reserve(indices.size() + 1);
    for (auto* const column : {&out.document_run_of, &out.starts, &out.lengths})
        column->reserve(indices.size() + 8);
    std::unordered_map<std::int64_t, std::int64_t> numbers;
    Location current{0, 0};           // of the row before, where this one often lies too
    std::int64_t begin = 0, end = 0;  // its positions
    std::int64_t number = -1;
    const auto enter = [&](std::int64_t position) {
        current = find(position);
        const std::int64_t part = at(current.place);
        begin = position - current.within;
        end = begin + (*sizes_)[to_size(part)];
        const auto [entry, is_new] = numbers.try_emplace(part, 0);
        if (is_new) {
            entry->second = static_cast<std::int64_t>(parts_used.size());
            parts_used.push_back(part);
        }
        number = entry->second;
    };
    for (const std::int64_t index : indices) {
        if (index < 0 || index >= samples) {
            throw std::out_of_range("index " + std::to_string(index) + " is out of range for " +
                                    std::to_string(samples) + " sequences");
        }
        std::int64_t position = index * stride;
        for (std::int64_t left = length; left > 0;) {
            if (position < begin || position >= end) enter(position);
            const std::int64_t taken = std::min(left, end - position);
            out.add(number, position - begin, taken);
            position += taken;
            left -= taken;
        }
        out.end_row();
    }
    return out;
}

}  // namespace windeck
