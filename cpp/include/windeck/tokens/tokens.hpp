// The tokens of the documents of one file, read in place.
//
// A shard is made of arrays of lists (as Arrow has them, or values with offsets), or of plain
// spans, one per document. Tokens are integers of 8 to 64 bits. Filters: leading and trailing
// tokens that are in `strip` are removed; then a document shorter than `min_length`, or outside of
// the part that was taken, keeps its number, and has length -1 and no tokens.
//
// The memory may be a mapped file that other processes write to or truncate. A view is always
// inside the memory of the shard, but the length of a document may change between two calls:
// compare it with the allocated size before a copy. All reads of documents, view() included, must
// be in reading() or guarded().
//
// Memory: O(arrays) for lists, 16 bytes a document for plain spans. view() takes O(1)
// expected time and what stripping looks at. Immutable, hence thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "windeck/base/cumulative.hpp"
#include "windeck/base/dtype.hpp"
#include "windeck/base/guard.hpp"

namespace windeck {

/// A system call on a file failed: OSError in Python.
class FileError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// A mapped file was truncated or written to while it was read.
class FileChanged : public FileError {
  public:
    using FileError::FileError;
};

/// An array of lists of integers. Row r has the values [offset r, offset r + 1), or
/// [r * width, (r + 1) * width) where there are no offsets.
struct TokenLists {
    const std::byte* values = nullptr;
    std::int64_t count = 0;              // of values
    const std::byte* offsets = nullptr;  // of row 0
    int offset_bytes = 0;                // 4 or 8, or 0 for lists of one width
    std::int64_t width = 0;
    std::int64_t rows = 0;
    const std::uint8_t* validity = nullptr;  // a bit per row, 0 = null, without tokens
    std::int64_t validity_offset = 0;        // the bit of row 0
};

/// A document as it is stored.
struct TokenSpan {
    const std::byte* data = nullptr;
    std::int64_t length = 0;
};

/// The values of a row, always inside the values of the lists, even if the offsets have changed.
TokenSpan row_of(const TokenLists& lists, std::int64_t row, std::int64_t token_bytes) noexcept;

/// Documents at any places of one memory. Document j has lengths[j] tokens from the byte starts[j]
/// on; documents may overlap, and need no alignment. Throws std::invalid_argument, naming the
/// document, for one that is not inside the memory, and for arrays of different lengths.
/// O(documents).
std::vector<TokenSpan> token_spans(std::span<const std::byte> data,
                                   std::span<const std::int64_t> starts,
                                   std::span<const std::int64_t> lengths, DType dtype,
                                   const std::string& name);

/// A duplicate of a file descriptor, closed by the destructor; -1 for a descriptor of -1.
class Descriptor {
  public:
    Descriptor() = default;
    /// Throws FileError with `name`, which is the file's.
    Descriptor(int original, const std::string& name);
    Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~Descriptor();

    int number() const noexcept { return number_; }

  private:
    int number_ = -1;
};

/// The memory of documents.
struct TokenMemory {
    std::shared_ptr<const void> owner;  // kept alive as long as the shard
    bool mapped = false;                // from the file open as `file`
    std::int64_t bytes = 0;             // of the file when it was mapped
    int file = -1;                      // the owner closes it

    /// Runs `body`, which reads the memory, in guarded(). Throws FileChanged with the name of the
    /// file if a read failed or the file is shorter than it was.
    template <typename Body>
    void reading(const std::string& name, Body&& body) const {
        if (mapped) {
            confirm(name, guarded(body));
        } else {
            body();
        }
    }

    void confirm(const std::string& name, bool read) const;
};

struct TokenFilter {
    std::vector<std::int64_t> strip;
    std::int64_t min_length = 0;
};

/// The documents j with key(state, j) in [first, last], see base/hash.hpp.
struct DocumentPart {
    std::uint64_t state = 0;
    std::uint64_t first = 0;
    std::uint64_t last = 0;
};

class TokenShard {
  public:
    struct View {
        const std::byte* data;  // not aligned; null if the length is below 1
        std::int64_t length;    // tokens; -1 for a filtered document
    };

    struct Totals {
        std::int64_t documents = 0;
        std::int64_t tokens = 0;  // as stored
        std::int64_t kept_documents = 0;
        std::int64_t kept_tokens = 0;
    };

    /// Throws std::invalid_argument, naming the row, for offsets that decrease or exceed the values
    /// (O(documents)), a negative min_length and a dtype that is not an integer; FileChanged as
    /// reading() does. `name` is the file's, for messages.
    TokenShard(DType dtype, std::vector<TokenLists> lists, TokenFilter filter, TokenMemory memory,
               std::string name);
    TokenShard(DType dtype, std::vector<TokenSpan> spans, TokenFilter filter, TokenMemory memory,
               std::string name);

    /// The same documents and memory; those outside of the part are filtered as well.
    TokenShard part(const DocumentPart& part) const;

    std::int64_t documents() const noexcept { return documents_; }
    DType dtype() const noexcept { return dtype_; }
    const std::string& name() const noexcept { return name_; }
    bool mapped() const noexcept { return memory_.mapped; }

    /// The tokens of a document after filters; 0 <= document < documents(). Reads the memory: call
    /// it in reading() or guarded().
    View view(std::int64_t document) const noexcept;

    /// Lengths of the documents from `first` on, as view() has them. Throws FileChanged.
    void lengths(std::int64_t first, std::span<std::int64_t> out) const;

    /// O(arrays) without filters, else a pass over the documents. Throws FileChanged.
    Totals totals() const;

    /// Copies a document to `out`, of the size of the document. Throws FileChanged if the size has
    /// changed.
    void copy(std::int64_t document, std::span<std::byte> out) const;

    /// Runs `body`, which reads this shard, in guarded(). Throws FileChanged if the file was
    /// truncated.
    template <typename Body>
    void reading(Body&& body) const {
        memory_.reading(name_, std::forward<Body>(body));
    }

    /// For callers that read several shards in one guarded(): throws FileChanged if the file of
    /// this one is shorter than it was, or if it is mapped and `read` is false.
    void confirm(bool read) const { memory_.confirm(name_, read); }

    /// Throws FileChanged for a document that had `was` tokens and has `now`.
    [[noreturn]] void refuse_changed(std::int64_t document, std::int64_t was,
                                     std::int64_t now) const;

  private:
    bool in_parts(std::int64_t document) const noexcept;
    TokenSpan stored(std::int64_t document) const noexcept;
    TokenSpan stripped(TokenSpan span) const noexcept;
    bool strips(const std::byte* token) const noexcept;
    void take(TokenFilter filter);
    void check_offsets() const;

    DType dtype_;
    std::int64_t bytes_;  // of a token
    std::vector<TokenLists> lists_;
    std::vector<TokenSpan> spans_;
    Cumulative rows_;  // of the arrays
    std::int64_t documents_ = 0;
    std::vector<std::int64_t> strip_;  // sorted, and only what the dtype can hold
    std::int64_t min_length_ = 0;
    std::vector<DocumentPart> parts_;  // a document has to be in all of them
    TokenMemory memory_;
    std::string name_;
};

}  // namespace windeck
