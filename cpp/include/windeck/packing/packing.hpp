// Packing: rows of equal length from documents.
//
// A document of n tokens is framed: [bos] + tokens + [eos], where bos and eos are optional. The
// stream of tokens of a document run is the concatenation of its framed documents. A filtered
// document (length -1 in its shard) has a place in the document run, but no tokens and no frame; an
// empty document has only its frame.
//
// PartOrder    parts (shards, blocks of documents) in the order of an epoch, and the sums of their
//              sizes: position of the epoch -> (part, position in it), and rows -> pieces.
// DocumentRun  the documents of one part in order, and the sums of their framed lengths.
// best_fit     documents -> sequences of at most a given capacity (padded packing).
// pack         pieces of document runs -> a batch: tokens, position_ids, targets_mask.
//
// Memory: PartOrder 8 bytes for every `every`-th part; DocumentRun 8 bytes per document, and the
// tokens if they are copied. Objects are immutable and thread-safe; the shard or block of a
// document run must outlive it. Positions and counts have 64 bits. Errors: std::invalid_argument
// for values, std::out_of_range for indices, FileChanged (tokens.hpp) for files that were truncated
// or written to.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "windeck/base/dtype.hpp"
#include "windeck/orders/permutation.hpp"

namespace windeck {

class TokenShard;

/// The row pieces of rows: row r has those of [row_offsets[r], row_offsets[r + 1]), and row piece p
/// the tokens [starts[p], starts[p] + lengths[p]) of document run number document_run_of[p].
struct Pieces {
    std::vector<std::int64_t> row_offsets{0};
    std::vector<std::int64_t> document_run_of;
    std::vector<std::int64_t> starts;
    std::vector<std::int64_t> lengths;

    void add(std::int64_t document_run, std::int64_t start, std::int64_t length) {
        document_run_of.push_back(document_run);
        starts.push_back(start);
        lengths.push_back(length);
    }
    void end_row() { row_offsets.push_back(static_cast<std::int64_t>(document_run_of.size())); }
};

/// Parts in the order of Permutation(parts, seed, epoch), with prefix sums of their sizes.
class PartOrder {
  public:
    struct Location {
        std::int64_t place;
        std::int64_t within;
    };

    using Sizes = std::shared_ptr<const std::vector<std::int64_t>>;

    /// Sums are stored for every `every`-th place, and computed from `sizes` between; epochs share
    /// the sizes.
    /// Throws std::invalid_argument for no parts, negative sizes or `every` below 1,
    /// std::overflow_error when the sizes add up to more than 2^63 - 1.
    PartOrder(Sizes sizes, std::uint64_t seed, std::uint64_t epoch, std::int64_t every = 1);

    const Sizes& sizes() const { return sizes_; }
    const Permutation& order() const { return order_; }
    std::int64_t every() const { return every_; }

    std::int64_t parts() const { return static_cast<std::int64_t>(sizes_->size()); }
    std::int64_t total() const { return total_; }

    /// The part at a place, and its inverse.
    std::int64_t at(std::int64_t place) const;
    std::int64_t index_of(std::int64_t part) const;

    /// The positions before a place, 0 <= place <= parts().
    std::int64_t before(std::int64_t place) const;

    /// The place and the offset of a position, 0 <= position < total().
    Location find(std::int64_t position) const;

    /// Row r is the positions [indices[r] * stride, indices[r] * stride + length); `parts` receives
    /// the parts of the pieces, and document_run_of the indices of parts in it. Throws
    /// std::out_of_range for an index not in [0, samples); (samples - 1) * stride + length must not
    /// exceed total().
    Pieces pieces(std::span<const std::int64_t> indices, std::int64_t stride, std::int64_t length,
                  std::int64_t samples, std::vector<std::int64_t>& parts) const;

  private:
    std::int64_t size_at(std::int64_t place) const;

    Sizes sizes_;
    Permutation order_;
    std::int64_t every_;
    std::vector<std::int64_t> sums_;  // before places 0, every, 2 * every, ...
    std::int64_t total_ = 0;
};

/// The tokens before and after those of a document.
struct Frame {
    std::optional<std::int64_t> bos;
    std::optional<std::int64_t> eos;

    std::int64_t tokens() const { return (bos ? 1 : 0) + (eos ? 1 : 0); }
    /// The framed length of a document; 0 for a filtered one.
    std::int64_t framed_length(std::int64_t length) const {
        return length < 0 ? 0 : length + tokens();
    }
};

/// The tokens of one document as they are stored; length -1 where it is filtered.
struct StoredTokens {
    const std::byte* data = nullptr;
    std::int64_t length = -1;
    DType dtype = DType::int32;
};

/// Documents of several shards, read shard by shard, so that only one shard is mapped at a time.
class DocumentBlock {
  public:
    /// What a block stores of documents: lengths only, the addresses of tokens in the shard, which
    /// must then outlive the block, or copies of tokens.
    enum class Take { lengths, addresses, copies };

    explicit DocumentBlock(std::int64_t places);

    /// Puts documents of a shard at places of the block. Throws std::out_of_range for a place or
    /// document that does not exist.
    void read(const TokenShard& shard, std::span<const std::int64_t> documents,
              std::span<const std::int64_t> places, Take take);

    /// The same documents without their tokens.
    DocumentBlock without_tokens() const;

    std::span<const StoredTokens> tokens() const { return tokens_; }
    std::int64_t document(std::int64_t place) const {
        return documents_[static_cast<std::size_t>(place)];
    }
    const std::string& source(std::int64_t place) const { return names_[name_at(place)]; }
    /// Shards whose memory it refers to.
    std::span<const TokenShard* const> shards() const { return shards_; }

  private:
    void copy_out(const TokenShard& shard, std::span<StoredTokens> found);
    std::size_t name_at(std::int64_t place) const {
        return static_cast<std::size_t>(name_of_[static_cast<std::size_t>(place)]);
    }

    std::vector<StoredTokens> tokens_;
    std::vector<std::int64_t> documents_;
    std::vector<std::int32_t> name_of_;
    std::vector<std::string> names_;
    std::vector<std::vector<std::byte>> copies_;
    std::vector<const TokenShard*> shards_;
};

/// Concatenated framed documents, with prefix sums of their lengths.
class DocumentRun {
  public:
    /// All documents of a shard, in the order of the file or of a permutation.
    /// Throws std::invalid_argument for a permutation of another size.
    DocumentRun(const TokenShard& shard, std::optional<Permutation> order, Frame frame,
                int threads);

    /// The documents of a block, by place.
    DocumentRun(const DocumentBlock& block, Frame frame);

    const Frame& frame() const { return frame_; }
    std::int64_t documents() const { return static_cast<std::int64_t>(sums_.size()) - 1; }
    std::int64_t total() const { return sums_.back(); }

    /// The document at a place, by its number in the shard, and the inverse; for a block, the
    /// place.
    std::int64_t at(std::int64_t place) const;
    std::int64_t index_of(std::int64_t document) const;

    std::int64_t before(std::int64_t place) const { return sums_[static_cast<std::size_t>(place)]; }
    /// The place whose document holds a position, 0 <= position < total().
    std::int64_t find(std::int64_t position) const;

    /// The tokens at a place. May read mapped memory: call it in guarded().
    StoredTokens view(std::int64_t place) const;

    /// Calls TokenShard::confirm() for the shards it reads, after a read in guarded().
    void confirm(bool read) const;
    bool mapped() const;

    /// For messages: "document 3 of 'c4/part1.arrow'".
    std::string describe(std::int64_t place) const;

  private:
    const TokenShard* shard_ = nullptr;
    std::optional<Permutation> order_;
    const DocumentBlock* block_ = nullptr;
    Frame frame_;
    std::vector<std::int64_t> sums_;
};

/// Adds the framed length of each document of a shard to the sum of its block. Document j has the
/// place order.index_of(first + j), and place p is in block p / block_size. Several threads may add
/// to the same sums.
void add_block_sums(const TokenShard& shard, const Permutation& order, std::int64_t first,
                    std::int64_t block_size, const Frame& frame, std::span<std::int64_t> sums,
                    int threads);

/// Sequences of whole documents, in the order they were opened: sequence b has the pieces
/// [offsets[b], offsets[b + 1]), each a range of the tokens of the document run.
struct Bins {
    std::vector<std::int64_t> offsets{0};
    std::vector<std::int64_t> starts;
    std::vector<std::int64_t> lengths;
};

/// Online best fit (Johnson 1974) of documents of the given framed lengths, in their order: each
/// goes into the open bin with the least room that suffices, of these the one opened last, or else
/// into a new bin. A document longer than `capacity` is cut into pieces of `capacity` tokens, each
/// a bin of its own, which share `overlap` tokens with the next piece; the rest, of more than
/// `overlap` tokens, is placed like a document. Lengths of 0 are skipped. `overlap` is 0 or 1, and
/// `capacity` is more.
Bins best_fit(std::span<const std::int64_t> lengths, std::int64_t capacity,
              std::int64_t overlap = 1);

/// The output of pack(): `rows` rows of `length` + 1 tokens and `length` position_ids. A row begins
/// and ends with the tokens of `frame`, before and after those of its pieces.
struct PackOut {
    DType dtype = DType::int64;  // int64 or int32, of tokens and position_ids alike
    std::int64_t rows = 0;
    std::int64_t length = 0;
    std::byte* tokens = nullptr;
    std::byte* position_ids = nullptr;
    std::uint8_t* targets_mask = nullptr;  // null: rows are full
    std::int64_t pad = 0;
    Frame frame = {};

    /// The tokens of pieces in a full row.
    std::int64_t content() const { return length + 1 - frame.tokens(); }
};

/// A view of Pieces, or of arrays like theirs.
struct PieceSpans {
    std::span<const std::int64_t> row_offsets;
    std::span<const std::int64_t> document_run_of;
    std::span<const std::int64_t> starts;
    std::span<const std::int64_t> lengths;
};

/// Throws std::invalid_argument unless every piece lies inside its document run and every row is
/// full (or, padded, not longer than that). O(pieces).
void check_pieces(std::span<const DocumentRun* const> document_runs, const PieceSpans& pieces,
                  const PackOut& out);

/// Writes a batch of checked pieces. position_ids count from 0 at the start of each row, piece,
/// document and padding; targets_mask is 1 where a token and the next one are neighbours in a
/// piece. The frame of a row belongs to its first and its last document there. Throws
/// std::invalid_argument for a token that the dtype cannot hold, with its document; the contents of
/// `out` are then unspecified.
void pack(std::span<const DocumentRun* const> document_runs, const PieceSpans& pieces,
          const PackOut& out, int threads);

/// The bounds of the pieces of a flattened batch, a padding included: 0, the positions after the
/// first where `ids` are 0, and `count`, which must be below 2^31. Within each piece ids count up
/// from 0, as `pack` writes them, so one is read at each end: O(pieces) time. Throws
/// std::invalid_argument for ids there that do not. `dtype` is int64 or int32.
std::vector<std::int32_t> sequence_bounds(const void* ids, std::int64_t count, DType dtype);

}  // namespace windeck
