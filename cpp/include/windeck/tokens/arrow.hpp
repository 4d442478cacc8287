// Documents out of an Arrow stream, over the Arrow C data interface, whose structs are declared
// here as its specification gives them: https://arrow.apache.org/docs/format/CDataInterface.html
//
// The stream is of one column, on its own or as the only child of a struct (a table). Rows of a
// list, large_list or fixed_size_list of integers are documents, a null one an empty document; of
// a column of integers each array is one. Nothing is copied. Every release callback is called,
// whatever happens.

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

/// One of the structs above, whose release callback is called at the end.
template <typename Struct>
class Released {
  public:
    Released() = default;
    explicit Released(const Struct& moved) : held_(moved) {}
    Released(Released&& other) noexcept : held_(other.held_) { other.held_.release = nullptr; }
    Released& operator=(Released&&) = delete;
    ~Released() {
        if (held_.release != nullptr) held_.release(&held_);
    }

    Struct* get() noexcept { return &held_; }
    const Struct& operator*() const noexcept { return held_; }
    const Struct* operator->() const noexcept { return &held_; }

  private:
    Struct held_{};
};

/// Tokens of another type than integers: TypeError in Python.
class WrongType : public std::invalid_argument {
  public:
    using std::invalid_argument::invalid_argument;
};

/// Where a file is mapped, and a descriptor of it, or -1.
struct MappedFile {
    const std::byte* begin = nullptr;
    std::int64_t bytes = 0;
    int descriptor = -1;
};

/// The documents of a stream, which is used up. With `file`, of arrays whose buffers lie in it
/// only addresses are kept, for as long as `owner` lives; other arrays are kept themselves. `owner`
/// is given up once nothing lies in its memory.
///
/// Buffers are trusted to be as long as their arrays say, save that none may reach over an end of
/// `file`. Throws WrongType, naming the type found; std::invalid_argument for null tokens, arrays
/// that contradict their schema, a stream that fails, and as TokenShard does; FileError when the
/// descriptor cannot be duplicated; FileChanged.
/// O(documents).
TokenShard shard_of_stream(Released<ArrowArrayStream> stream, TokenFilter filter,
                           std::optional<MappedFile> file, std::shared_ptr<const void> owner,
                           std::string name);

}  // namespace windeck
