// Division of an endless sequence among parts, in exact shares, with random access both ways.
//
// A binary tree has a leaf for each part of size above 0. A node of size w whose left child has
// size l gives floor(n * l / w + 1/2) of its first n positions to the left child, and the others
// to the right one. So the part at a position, and its earlier positions, follow from one division
// for each node on the path, and so does the position of a part's n-th sample.
//
// The tree is Huffman's (1952): the two nodes of least size get a common parent, until one is left.
// Of equal sizes the earlier node comes first: leaves in the order of the parts, then parents in
// the order in which they were made. The left child is the larger one, or the earlier of equals.
// A grandchild has at most half the size of its node, and each rounding is by at most 1/2, so after
// any number of positions each part is within 2 of its exact share: a node's error reaches a leaf
// multiplied by the leaf's share of the child, 1 + 1 + 1/2 + 1/2 + 1/4 + ... in all.
//
// Published: the tree determines the samples of mixtures, so it does not change.
//
// Cost: O(parts * log(parts)) time and O(parts) memory to make; the depth of the part per position,
// which is less than 1 + log2(parts) on average.
// Errors: std::invalid_argument from the constructor.
// Threads: immutable, hence thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace windeck {

class ShareTree {
  public:
    static constexpr std::int64_t max_total = std::int64_t{1} << 62;

    /// Throws std::invalid_argument for a negative size, and unless the sum is in [1, max_total].
    explicit ShareTree(std::span<const std::int64_t> sizes);

    std::size_t parts() const noexcept { return sizes_.size(); }
    std::span<const std::int64_t> sizes() const noexcept { return sizes_; }
    std::int64_t total() const noexcept { return static_cast<std::int64_t>(nodes_.back().size); }

    /// The part at each position, and the number of earlier positions of that part. Positions must
    /// not be negative.
    void locate(std::span<const std::int64_t> positions, std::int64_t* parts,
                std::int64_t* numbers) const noexcept;

    /// The position of each number of a part, from 0: the inverse of `locate`. -1 if it is above
    /// `most`, and for a part of size 0. Numbers must not be negative.
    void position_of(std::size_t part, std::span<const std::int64_t> numbers, std::int64_t most,
                     std::int64_t* positions) const noexcept;

    /// The number of positions of each part among the first `count`; `counts` has parts() values.
    void count_before(std::int64_t count, std::span<std::int64_t> counts) const;

  private:
    /// A leaf if it has no children; then `left` is its part. Children come before their parent.
    struct Node {
        std::uint64_t size = 0;
        std::uint64_t left_size = 0;
        std::size_t left = 0;
        std::size_t right = 0;
        std::size_t parent = 0;
    };

    std::vector<std::int64_t> sizes_;
    std::vector<Node> nodes_;
    std::vector<std::size_t> leaves_;  // by part; nodes_.size() for a part of size 0
    std::size_t leaf_count_ = 0;
};

}  // namespace windeck
