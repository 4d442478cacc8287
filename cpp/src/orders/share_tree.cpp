#include "windeck/orders/share_tree.hpp"

#include <functional>
#include <queue>
#include <stdexcept>
#include <string>
#include <utility>

namespace windeck {
namespace {

__extension__ typedef unsigned __int128 Wide;

struct Quotient {
    std::uint64_t whole;
    std::uint64_t rest;
};

/// The quotient must fit into 64 bits.
Quotient divide(Wide value, std::uint64_t by) {
    if (value >> 64 == 0) {
        const auto low = static_cast<std::uint64_t>(value);
        return {low / by, low % by};
    }
    const auto whole = static_cast<std::uint64_t>(value / by);
    return {whole, static_cast<std::uint64_t>(value - Wide{whole} * by)};
}

/// floor(count * left / size + 1/2), and the rest in units of 1 / (2 * size). With left <= size <=
/// 2^62 and count < 2^63 nothing exceeds 128 bits, and the rest plus 2 * left not 64.
Quotient of_left(std::uint64_t count, std::uint64_t left, std::uint64_t size) {
    return divide(Wide{2 * left} * count + size, 2 * size);
}

}  // namespace

ShareTree::ShareTree(std::span<const std::int64_t> sizes) : sizes_(sizes.begin(), sizes.end()) {
    std::int64_t total = 0;
    for (std::size_t part = 0; part < sizes.size(); ++part) {
        if (sizes[part] < 0 || sizes[part] > max_total - total) {
            throw std::invalid_argument(
                "sizes[" + std::to_string(part) + "] is " + std::to_string(sizes[part]) +
                ", expected sizes of at least 0 with a sum of at most 2^62");
        }
        total += sizes[part];
    }
    if (total == 0) throw std::invalid_argument("the sum of the sizes is 0, expected at least 1");

    using Sized = std::pair<std::uint64_t, std::size_t>;  // the size of a node, and its number
    std::priority_queue<Sized, std::vector<Sized>, std::greater<>> smallest;
    for (std::size_t part = 0; part < sizes.size(); ++part) {
        if (sizes[part] == 0) continue;
        const auto size = static_cast<std::uint64_t>(sizes[part]);
        smallest.emplace(size, nodes_.size());
        nodes_.push_back({.size = size, .left = part});
    }
    leaf_count_ = nodes_.size();
    nodes_.reserve(2 * leaf_count_ - 1);
    while (smallest.size() > 1) {
        const Sized less = smallest.top();
        smallest.pop();
        const Sized more = smallest.top();
        smallest.pop();
        const auto [left, right] =
            more.first > less.first ? std::pair(more, less) : std::pair(less, more);
        const std::size_t parent = nodes_.size();
        nodes_[left.second].parent = nodes_[right.second].parent = parent;
        nodes_.push_back({.size = left.first + right.first,
                          .left_size = left.first,
                          .left = left.second,
                          .right = right.second});
        smallest.emplace(left.first + right.first, parent);
    }
    leaves_.assign(sizes.size(), nodes_.size());
    for (std::size_t leaf = 0; leaf < leaf_count_; ++leaf)
        leaves_[nodes_[leaf].left] = leaf;
}

void ShareTree::locate(std::span<const std::int64_t> positions, std::int64_t* parts,
                       std::int64_t* numbers) const noexcept {
    for (std::size_t i = 0; i < positions.size(); ++i) {
        auto place = static_cast<std::uint64_t>(positions[i]);
        std::size_t at = nodes_.size() - 1;
        while (at >= leaf_count_) {
            const Node& node = nodes_[at];
            const auto [left, rest] = of_left(place, node.left_size, node.size);
            // The next position is of the left child if the rounded number grows with it.
            const bool is_left = rest + 2 * node.left_size >= 2 * node.size;
            place = is_left ? left : place - left;
            at = is_left ? node.left : node.right;
        }
        parts[i] = static_cast<std::int64_t>(nodes_[at].left);
        numbers[i] = static_cast<std::int64_t>(place);
    }
}

void ShareTree::position_of(std::size_t part, std::span<const std::int64_t> numbers,
                            std::int64_t most, std::int64_t* positions) const noexcept {
    const auto limit = static_cast<std::uint64_t>(most);
    const std::size_t leaf = leaves_[part];
    const std::size_t root = nodes_.size() - 1;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        auto place = static_cast<std::uint64_t>(numbers[i]);
        bool inside = leaf <= root && place <= limit;
        for (std::size_t at = leaf; inside && at != root;) {
            const Node& node = nodes_[nodes_[at].parent];
            // The least n with floor(n * left / size + 1/2) > place, less 1; likewise on the right.
            const Wide scaled = Wide{node.size} * (2 * place + 1);
            const Wide found = node.left == at ? (scaled - 1) / (2 * node.left_size)
                                               : scaled / (2 * (node.size - node.left_size));
            inside = found <= limit;
            place = static_cast<std::uint64_t>(found);
            at = nodes_[at].parent;
        }
        positions[i] = inside ? static_cast<std::int64_t>(place) : -1;
    }
}

void ShareTree::count_before(std::int64_t count, std::span<std::int64_t> counts) const {
    std::vector<std::uint64_t> of_node(nodes_.size());
    of_node.back() = static_cast<std::uint64_t>(count);
    for (std::size_t at = nodes_.size(); at-- > leaf_count_;) {
        const Node& node = nodes_[at];
        const std::uint64_t left = of_left(of_node[at], node.left_size, node.size).whole;
        of_node[node.left] = left;
        of_node[node.right] = of_node[at] - left;
    }
    for (std::size_t part = 0; part < counts.size(); ++part) {
        const std::size_t leaf = leaves_[part];
        counts[part] = leaf < leaf_count_ ? static_cast<std::int64_t>(of_node[leaf]) : 0;
    }
}

}  // namespace windeck
