#include "windeck/tokens/arrow.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "tokens/arrow_types.hpp"

namespace windeck {
namespace {

/// Bits [first, first + count) of a bitmap that are 0.
std::int64_t count_zeros(const std::uint8_t* bits, std::int64_t first, std::int64_t count) {
    std::int64_t ones = 0;
    const std::int64_t end = first + count;
    std::int64_t bit = first;
    for (; bit < end && bit % 8 != 0; ++bit)
        ones += bits[bit / 8] >> (bit % 8) & 1;
    for (; bit + 64 <= end; bit += 64) {
        std::uint64_t word = 0;
        std::memcpy(&word, bits + bit / 8, sizeof word);
        ones += std::popcount(word);
    }
    for (; bit < end; ++bit)
        ones += bits[bit / 8] >> (bit % 8) & 1;
    return count - ones;
}

/// Collects the lists or spans of a shard from the arrays of a stream.
class ArrowReader {
  public:
    ArrowReader(TokenColumn column, std::optional<MappedFile> file, std::string name)
        : column_(std::move(column)),
          file_(file),
          name_(std::move(name)),
          bytes_(size_of(column_.dtype)) {
        if (file_) {
            memory_.mapped = true;
            memory_.bytes = file_->bytes;
            memory_.file = file_->descriptor;
        }
    }

    /// Adds one array. Returns whether any of it is outside the file, so that it must be kept.
    bool take(const ArrowArray& top) {
        outside_ = !file_;
        const ArrowArray* array = &top;
        std::int64_t first = top.offset;
        if (column_.in_struct) {
            require(top.n_children == 1 && top.children != nullptr && top.n_buffers == 1 &&
                    top.buffers != nullptr);
            if (top.null_count != 0 && top.length > 0 && top.buffers[0] != nullptr) {
                throw std::invalid_argument(column_.text +
                                            " lies in a struct with nulls, expected a table");
            }
            array = top.children[0];
            require(sum(top.offset, top.length) <= array->length);
            first = sum(array->offset, top.offset);
        }
        require(array->length >= 0 && array->offset >= 0 && array->dictionary == nullptr);
        require(top.length >= 0 && top.offset >= 0);
        (void)sum(first, top.length);
        if (column_.lists) {
            take_lists(*array, first, top.length);
        } else {
            take_span(*array, first, top.length);
        }
        return outside_;
    }

    /// Whether any array is in the file.
    bool inside() const noexcept { return inside_; }

    TokenShard shard(TokenFilter filter, std::shared_ptr<const void> owner) && {
        memory_.owner = std::move(owner);
        memory_.mapped = inside_;
        if (column_.lists) {
            return {column_.dtype, std::move(lists_), std::move(filter), std::move(memory_),
                    std::move(name_)};
        }
        return {column_.dtype, std::move(spans_), std::move(filter), std::move(memory_),
                std::move(name_)};
    }

  private:
    void require(bool sound) const {
        if (sound) return;
        throw std::invalid_argument(column_.text + " has an array that contradicts its type, " +
                                    "expected what the Arrow C data interface prescribes");
    }

    std::int64_t sum(std::int64_t a, std::int64_t b) const {
        std::int64_t out = 0;
        require(a >= 0 && b >= 0 && !__builtin_add_overflow(a, b, &out));
        return out;
    }

    std::int64_t product(std::int64_t a, std::int64_t b) const {
        std::int64_t out = 0;
        require(a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, &out));
        return out;
    }

    /// `count` bytes of a buffer from `first` on. Records whether they are inside or outside the
    /// file.
    const std::byte* locate(const void* buffer, std::int64_t first, std::int64_t count) {
        if (count == 0) return nullptr;
        require(buffer != nullptr);
        const auto* const begin = static_cast<const std::byte*>(buffer) + first;
        if (!file_) return begin;
        const auto low = reinterpret_cast<std::uintptr_t>(begin);
        const auto high = low + static_cast<std::uintptr_t>(count);
        const auto start = reinterpret_cast<std::uintptr_t>(file_->begin);
        const auto stop = start + static_cast<std::uintptr_t>(file_->bytes);
        if (high <= start || low >= stop) {
            outside_ = true;
        } else if (low >= start && high <= stop) {
            inside_ = true;
        } else {
            throw std::invalid_argument(column_.text + " has an array that reaches over the end " +
                                        "of the file, expected one inside of it");
        }
        return begin;
    }

    /// The bitmap of an array's elements from `first` on, or null where none of them is null.
    const std::uint8_t* validity(const ArrowArray& array, std::int64_t first, std::int64_t count) {
        if (array.null_count == 0 || count == 0 || array.buffers[0] == nullptr) return nullptr;
        const std::int64_t begin = first / 8;
        const std::int64_t bytes = sum(sum(first % 8, count), 7) / 8;
        const std::byte* const bits = locate(array.buffers[0], begin, bytes);
        return reinterpret_cast<const std::uint8_t*>(bits);
    }

    void take_span(const ArrowArray& array, std::int64_t first, std::int64_t length) {
        require(array.n_buffers == 2 && array.buffers != nullptr);
        const std::uint8_t* const bits = validity(array, first, length);
        std::int64_t nulls = 0;
        if (bits != nullptr) {
            memory_.reading(name_, [&] { nulls = count_zeros(bits, first % 8, length); });
        }
        if (nulls != 0) refuse_nulls(static_cast<std::int64_t>(spans_.size()), nulls);
        const std::int64_t begin = product(first, bytes_);
        spans_.push_back({locate(array.buffers[1], begin, product(length, bytes_)), length});
    }

    void take_lists(const ArrowArray& array, std::int64_t first, std::int64_t rows) {
        require(array.n_buffers == (column_.offset_bytes == 0 ? 1 : 2) && array.n_children == 1 &&
                array.buffers != nullptr && array.children != nullptr);
        const ArrowArray& values = *array.children[0];
        require(values.n_buffers == 2 && values.length >= 0 && values.offset >= 0 &&
                values.buffers != nullptr && values.dictionary == nullptr);
        if (rows == 0) return;
        TokenLists lists{.count = values.length,
                         .offset_bytes = column_.offset_bytes,
                         .width = column_.width,
                         .rows = rows,
                         .validity = validity(array, first, rows),
                         .validity_offset = first % 8};
        std::int64_t skipped = values.offset;
        if (column_.offset_bytes != 0) {
            const std::int64_t entries = product(sum(rows, 1), column_.offset_bytes);
            lists.offsets = locate(array.buffers[1], product(first, column_.offset_bytes), entries);
        } else {
            const std::int64_t before = product(first, column_.width);
            lists.count = product(rows, column_.width);
            require(sum(before, lists.count) <= values.length);
            skipped = sum(skipped, before);
        }
        lists.values =
            locate(values.buffers[1], product(skipped, bytes_), product(lists.count, bytes_));
        check_tokens(lists, values, skipped);
        documents_ = sum(documents_, rows);
        lists_.push_back(lists);
    }

    /// Null tokens are allowed between documents and in null documents.
    void check_tokens(const TokenLists& lists, const ArrowArray& values, std::int64_t skipped) {
        const std::uint8_t* const bits = validity(values, skipped, lists.count);
        if (bits == nullptr) return;
        std::int64_t row = 0;
        std::int64_t nulls = 0;
        memory_.reading(name_, [&] {
            if (count_zeros(bits, skipped % 8, lists.count) == 0) return;
            for (; row < lists.rows; ++row) {
                const TokenSpan span = row_of(lists, row, bytes_);
                const std::int64_t begin = (span.data - lists.values) / bytes_;
                nulls = count_zeros(bits, skipped % 8 + begin, span.length);
                if (nulls != 0) return;
            }
        });
        if (nulls != 0) refuse_nulls(documents_ + row, nulls);
    }

    [[noreturn]] void refuse_nulls(std::int64_t document, std::int64_t nulls) const {
        throw std::invalid_argument("document " + std::to_string(document) + " in " + column_.text +
                                    " has " + std::to_string(nulls) +
                                    " null tokens, expected none");
    }

    TokenColumn column_;
    std::optional<MappedFile> file_;
    std::string name_;
    std::int64_t bytes_;  // of a token
    TokenMemory memory_;
    std::vector<TokenLists> lists_;
    std::vector<TokenSpan> spans_;
    std::int64_t documents_ = 0;  // in lists
    bool inside_ = false;
    bool outside_ = false;  // of the array being taken
};

/// The objects that a shard keeps alive.
struct KeptAlive {
    std::vector<Owned<ArrowArray>> arrays;
    std::shared_ptr<const void> owner;
    Descriptor descriptor;
};

void check_status(int code, ArrowArrayStream& stream, const std::string& name) {
    if (code == 0) return;
    if (code == ENOMEM) throw std::bad_alloc();
    const char* const reason = stream.get_last_error(&stream);
    throw std::invalid_argument("the stream of '" + name +
                                "' failed: " + (reason != nullptr ? reason : std::strerror(code)));
}

}  // namespace

TokenShard shard_of_stream(Owned<ArrowArrayStream> stream, TokenFilter filter,
                           std::optional<MappedFile> file, std::shared_ptr<const void> owner,
                           std::string name) {
    const auto kept = std::make_shared<KeptAlive>();
    kept->owner = std::move(owner);
    if (file) {
        kept->descriptor = Descriptor(file->descriptor, name);
        file->descriptor = kept->descriptor.number();
    }
    Owned<ArrowSchema> schema;
    check_status(stream->get_schema(stream.get(), schema.get()), *stream.get(), name);
    ArrowReader reader(column_of(*schema, name), file, name);
    for (;;) {
        Owned<ArrowArray> array;
        check_status(stream->get_next(stream.get(), array.get()), *stream.get(), name);
        if (array->release == nullptr) break;
        if (reader.take(*array)) kept->arrays.push_back(std::move(array));
    }
    if (file && !reader.inside()) kept->owner.reset();
    return std::move(reader).shard(std::move(filter), kept);
}

}  // namespace windeck
