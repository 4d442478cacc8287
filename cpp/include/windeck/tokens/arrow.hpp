// Documents of an Arrow stream, over the Arrow C data interface. The structs are those of its
// specification: https://arrow.apache.org/docs/format/CDataInterface.html
//
// The stream is of one column, on its own or as the only child of a struct (a table). Rows of a
// list, large_list or fixed_size_list of integers are documents, a null row an empty document; in a
// column of integers each array is a document. Nothing is copied. Every release callback is called,
// also after an error.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "windeck/tokens/tokens.hpp"

namespace windeck {

struct ArrowSchema {
    const char* format;
    const char* name;
    const char* metadata;
    std::int64_t flags;
    std::int64_t n_children;
    ArrowSchema** children;
    ArrowSchema* dictionary;
    void (*release)(ArrowSchema*);
    void* private_data;
};

struct ArrowArray {
    std::int64_t length;
    std::int64_t null_count;
    std::int64_t offset;
    std::int64_t n_buffers;
    std::int64_t n_children;
    const void** buffers;
    ArrowArray** children;
    ArrowArray* dictionary;
    void (*release)(ArrowArray*);
    void* private_data;
};

struct ArrowArrayStream {
    int (*get_schema)(ArrowArrayStream*, ArrowSchema* out);
    int (*get_next)(ArrowArrayStream*, ArrowArray* out);
    const char* (*get_last_error)(ArrowArrayStream*);
    void (*release)(ArrowArrayStream*);
    void* private_data;
};

/// One of the structs above; the destructor calls its release callback.
template <typename Struct>
class Owned {
  public:
    Owned() = default;
    explicit Owned(const Struct& moved) : held_(moved) {}
    Owned(Owned&& other) noexcept : held_(other.held_) { other.held_.release = nullptr; }
    Owned& operator=(Owned&&) = delete;
    ~Owned() {
        if (held_.release != nullptr) held_.release(&held_);
    }

    Struct* get() noexcept { return &held_; }
    const Struct& operator*() const noexcept { return held_; }
    const Struct* operator->() const noexcept { return &held_; }

  private:
    Struct held_{};
};

/// Tokens that are not integers: TypeError in Python.
class WrongType : public std::invalid_argument {
  public:
    using std::invalid_argument::invalid_argument;
};

/// A mapped file: its memory, and a descriptor or -1.
struct MappedFile {
    const std::byte* begin = nullptr;
    std::int64_t bytes = 0;
    int descriptor = -1;
};

/// The documents of a stream, which is consumed. Of arrays with buffers in `file` only the
/// addresses are kept, and `owner` with them; other arrays are kept whole. `owner` is released if
/// no array is in its memory.
///
/// The lengths of buffers are not checked, except that no buffer may be partly outside `file`.
/// Throws WrongType with the type found; std::invalid_argument for null tokens, arrays that
/// contradict their schema, a stream that fails, and as TokenShard does; FileError when the
/// descriptor cannot be duplicated; FileChanged. O(documents).
TokenShard shard_of_stream(Owned<ArrowArrayStream> stream, TokenFilter filter,
                           std::optional<MappedFile> file, std::shared_ptr<const void> owner,
                           std::string name);

}  // namespace windeck
