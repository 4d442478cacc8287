// The documents of one file, by address: which tokens each has, read where they lie.
//
// A shard is made of chunks of lists (Arrow arrays, or values with offsets), or of plain pieces,
// one a document. Tokens are integers of 8 to 64 bits. What is filtered stays in the order:
// leading and trailing runs of the tokens in `strip` are left out, then a document shorter than
// `min_length` has length -1, and a view of no tokens.
//
// The memory may be a mapped file that others write to or cut short. Whatever they do, a view lies
// inside the memory the shard was made with; but a document may be longer or shorter than it was a
// moment ago, so whoever copies compares the length with the one made room for. All reads of
// documents, view() included, go through reading() or guarded().
//
// Memory: O(chunks) for lists, 16 bytes a document for plain pieces. view() takes O(1) expected
// time and what stripping looks at. Immutable, hence thread-safe.

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

/// The system refused something about a file: OSError in Python.
class FileError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// A mapped file was cut short or written to while it was read.
class FileChanged : public FileError {
  public:
    using FileError::FileError;
};

/// An array of lists of integers. Row r has the values [offset r, offset r + 1), or
/// [r * width, (r + 1) * width) where there are no offsets.
struct ListChunk {
    const std::byte* values = nullptr;
    std::int64_t count = 0;              // values there are
    const std::byte* offsets = nullptr;  // of row 0
    int offset_bytes = 0;                // 4 or 8, or 0 for lists of one width
    std::int64_t width = 0;
    std::int64_t rows = 0;
    const std::uint8_t* validity = nullptr;  // a bit a row, 0 = null, which has no tokens
    std::int64_t validity_offset = 0;        // the bit of row 0
};

/// A document as it is stored.
struct TokenSpan {
    const std::byte* data = nullptr;
    std::int64_t length = 0;
};

/// A row's values. They are inside of the chunk's, whatever the offsets are by now.
TokenSpan row_of(const ListChunk& chunk, std::int64_t row, std::int64_t token_bytes) noexcept;

/// What documents lie in.
struct Memory {
    std::shared_ptr<const void> owner;  // kept alive as long as the shard
    bool mapped = false;                // in a file, which `file` is open on
    std::int64_t bytes = 0;             // of the file when it was mapped
    int file = -1;                      // the owner closes it

    /// Runs `body`, which reads it, guarded; throws FileChanged, naming the file, when that failed
    /// or the file is shorter than it was.
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

class TokenShard {
  public:
    struct View {
        const std::byte* data;  // not aligned to anything; null where the length is below 1
        std::int64_t length;    // tokens; -1 for a document that is filtered
    };

    struct Totals {
        std::int64_t documents = 0;
        std::int64_t tokens = 0;  // as stored
        std::int64_t kept_documents = 0;
        std::int64_t kept_tokens = 0;
    };

    /// Throws std::invalid_argument, naming the row, for offsets that decrease or leave the values
    /// (O(documents)), a negative min_length and a dtype that is no integer; FileChanged as
    /// reading() does. `name` is the file's, for messages.
    TokenShard(DType dtype, std::vector<ListChunk> lists, TokenFilter filter, Memory memory,
               std::string name);
    TokenShard(DType dtype, std::vector<TokenSpan> pieces, TokenFilter filter, Memory memory,
               std::string name);

    std::int64_t documents() const noexcept { return documents_; }
    DType dtype() const noexcept { return dtype_; }
    const std::string& name() const noexcept { return name_; }
    bool mapped() const noexcept { return memory_.mapped; }

    /// The tokens of a document after filters; 0 <= document < documents(). Reads the memory, so
    /// call it inside of reading() or guarded().
    View view(std::int64_t document) const noexcept;

    /// Lengths of the documents from `first` on, as view() has them. Throws FileChanged.
    void lengths(std::int64_t first, std::span<std::int64_t> out) const;

    /// O(chunks) without filters, else a pass over the documents. Throws FileChanged.
    Totals totals() const;

    /// Copies a document to `out`, which has room for as many tokens as the document had; throws
    /// FileChanged when it has another number now.
    void copy(std::int64_t document, std::span<std::byte> out) const;

    /// Runs `body`, which reads this shard, as guarded() does; throws FileChanged when the file
    /// turned out to be cut short.
    template <typename Body>
    void reading(Body&& body) const {
        memory_.reading(name_, std::forward<Body>(body));
    }

    /// For those who read several shards in one guarded(): throws FileChanged when this one's file
    /// is shorter than it was, or when `read` is false and it lies in a file.
    void confirm(bool read) const { memory_.confirm(name_, read); }

    /// Throws FileChanged, for a document of `was` tokens that has `now`.
    [[noreturn]] void refuse_changed(std::int64_t document, std::int64_t was,
                                     std::int64_t now) const;

  private:
    TokenSpan stored(std::int64_t document) const noexcept;
    TokenSpan stripped(TokenSpan piece) const noexcept;
    bool strips(const std::byte* token) const noexcept;
    void take(TokenFilter filter);
    void check_offsets() const;

    DType dtype_;
    std::int64_t bytes_;  // of a token
    std::vector<ListChunk> lists_;
    std::vector<TokenSpan> pieces_;
    Cumulative rows_;  // of the chunks
    std::int64_t documents_ = 0;
    std::vector<std::int64_t> strip_;  // sorted, and only what the dtype can hold
    std::int64_t min_length_ = 0;
    Memory memory_;
    std::string name_;
};

}  // namespace windeck
