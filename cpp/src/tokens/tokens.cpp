#include "windeck/tokens/tokens.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "windeck/base/hash.hpp"

namespace windeck {
namespace {

std::size_t at(std::int64_t position) {
    return static_cast<std::size_t>(position);
}

/// Values in a file may have any alignment, so they are copied; compilers make plain loads of it.
template <typename T>
T load(const std::byte* place) {
    T value;
    std::memcpy(&value, place, sizeof value);
    return value;
}

std::int64_t offset(const TokenLists& lists, std::int64_t row) {
    const std::byte* const place = lists.offsets + row * lists.offset_bytes;
    return lists.offset_bytes == 4 ? load<std::int32_t>(place) : load<std::int64_t>(place);
}

bool is_null(const TokenLists& lists, std::int64_t row) {
    if (lists.validity == nullptr) return false;
    const std::int64_t bit = lists.validity_offset + row;
    return (lists.validity[bit / 8] >> (bit % 8) & 1) == 0;
}

/// The first row whose offsets decrease or leave the values; `rows` where there is none.
std::int64_t first_bad_row(const TokenLists& lists) {
    if (lists.rows == 0) return 0;
    if (lists.offset_bytes == 0) {
        const bool fits = lists.width == 0 || lists.rows <= lists.count / lists.width;
        return fits ? lists.rows : lists.count / lists.width;
    }
    std::int64_t before = offset(lists, 0);
    if (before < 0) return 0;
    for (std::int64_t row = 0; row < lists.rows; ++row) {
        const std::int64_t next = offset(lists, row + 1);
        if (next < before || next > lists.count) return row;
        before = next;
    }
    return lists.rows;
}

/// A token as int64. A uint64 of 2^63 or more becomes negative, which no strip value of an unsigned
/// type is.
std::int64_t widened(const std::byte* token, DType dtype) {
    switch (dtype) {
        case DType::int8:
            return load<std::int8_t>(token);
        case DType::int16:
            return load<std::int16_t>(token);
        case DType::int32:
            return load<std::int32_t>(token);
        case DType::uint8:
            return load<std::uint8_t>(token);
        case DType::uint16:
            return load<std::uint16_t>(token);
        case DType::uint32:
            return load<std::uint32_t>(token);
        default:
            return load<std::int64_t>(token);
    }
}

/// Whether the dtype has this value.
bool holds(DType dtype, std::int64_t value) {
    if (is_unsigned(dtype) && value < 0) return false;
    if (size_of(dtype) == 8) return true;
    const int bits = static_cast<int>(8 * size_of(dtype)) - (is_unsigned(dtype) ? 0 : 1);
    return value >> bits == 0 || (value < 0 && value >> bits == -1);
}

[[noreturn]] void refuse_row(const TokenLists& lists, std::int64_t row, std::int64_t document,
                             const std::string& name) {
    const std::string whose = "document " + std::to_string(document) + " of '" + name + "'";
    if (lists.offset_bytes == 0) {
        throw std::invalid_argument(whose + " ends after the " + std::to_string(lists.count) +
                                    " values, expected " + std::to_string(lists.width) +
                                    " values for every document");
    }
    throw std::invalid_argument(whose + " has the offsets " + std::to_string(offset(lists, row)) +
                                " to " + std::to_string(offset(lists, row + 1)) +
                                ", expected offsets from 0 to " + std::to_string(lists.count) +
                                " that never decrease");
}

}  // namespace

// Offsets were checked when the shard was made, but the file may have been written to since.
TokenSpan row_of(const TokenLists& lists, std::int64_t row, std::int64_t token_bytes) noexcept {
    if (is_null(lists, row)) return {lists.values, 0};
    std::int64_t begin = row * lists.width;
    std::int64_t end = begin + lists.width;
    if (lists.offset_bytes != 0) {
        begin = std::clamp<std::int64_t>(offset(lists, row), 0, lists.count);
        end = std::clamp(offset(lists, row + 1), begin, lists.count);
    }
    return {lists.values + begin * token_bytes, end - begin};
}

std::vector<TokenSpan> token_spans(std::span<const std::byte> data,
                                   std::span<const std::int64_t> starts,
                                   std::span<const std::int64_t> lengths, DType dtype,
                                   const std::string& name) {
    if (starts.size() != lengths.size()) {
        throw std::invalid_argument("'" + name + "' has " + std::to_string(starts.size()) +
                                    " starts and " + std::to_string(lengths.size()) +
                                    " lengths of documents, expected one of each a document");
    }
    const auto size = static_cast<std::int64_t>(data.size());
    std::vector<TokenSpan> spans;
    spans.reserve(starts.size());
    for (std::size_t i = 0; i < starts.size(); ++i) {
        const std::int64_t start = starts[i];
        const std::int64_t length = lengths[i];
        const bool inside =
            start >= 0 && start <= size && length >= 0 && length <= (size - start) / size_of(dtype);
        if (!inside) {
            throw std::invalid_argument("document " + std::to_string(i) + " of '" + name +
                                        "' has " + std::to_string(length) + " tokens from byte " +
                                        std::to_string(start) + " on, expected tokens inside of " +
                                        std::to_string(size) + " bytes");
        }
        spans.push_back({length == 0 ? nullptr : data.data() + start, length});
    }
    return spans;
}

Descriptor::Descriptor(int original, const std::string& name) {
    if (original < 0) return;
    number_ = fcntl(original, F_DUPFD_CLOEXEC, 0);
    if (number_ >= 0) return;
    throw FileError("the descriptor " + std::to_string(original) + " of '" + name +
                    "' cannot be duplicated: " + std::strerror(errno));
}

Descriptor::~Descriptor() {
    if (number_ >= 0) close(number_);
}

void TokenMemory::confirm(const std::string& name, bool read) const {
    if (!mapped) return;
    struct stat now{};
    if (file >= 0 && fstat(file, &now) == 0 && now.st_size < bytes) {
        throw FileChanged("'" + name + "' became shorter while it was mapped: it has " +
                          std::to_string(now.st_size) + " bytes and had " + std::to_string(bytes) +
                          ", expected files that stay as they are");
    }
    if (!read) {
        throw FileChanged("'" + name +
                          "' could not be read while it was mapped: the system failed to bring in "
                          "one of its pages, expected files that stay as they are");
    }
}

TokenShard::TokenShard(DType dtype, std::vector<TokenLists> lists, TokenFilter filter,
                       TokenMemory memory, std::string name)
    : dtype_(dtype),
      bytes_(size_of(dtype)),
      lists_(std::move(lists)),
      memory_(std::move(memory)),
      name_(std::move(name)) {
    std::vector<std::int64_t> rows;
    rows.reserve(lists_.size());
    for (const TokenLists& each : lists_)
        rows.push_back(each.rows);
    rows_ = Cumulative(rows);
    documents_ = rows_.total();
    take(std::move(filter));
    check_offsets();
}

TokenShard::TokenShard(DType dtype, std::vector<TokenSpan> spans, TokenFilter filter,
                       TokenMemory memory, std::string name)
    : dtype_(dtype),
      bytes_(size_of(dtype)),
      spans_(std::move(spans)),
      documents_(static_cast<std::int64_t>(spans_.size())),
      memory_(std::move(memory)),
      name_(std::move(name)) {
    take(std::move(filter));
}

void TokenShard::take(TokenFilter filter) {
    if (!is_integer(dtype_)) {
        throw std::invalid_argument("tokens of '" + name_ + "' are " + windeck::name(dtype_) +
                                    ", expected integers");
    }
    if (filter.min_length < 0) {
        throw std::invalid_argument("min_length is " + std::to_string(filter.min_length) +
                                    ", expected 0 or more");
    }
    min_length_ = filter.min_length;
    strip_ = std::move(filter.strip);
    std::erase_if(strip_, [this](std::int64_t value) { return !holds(dtype_, value); });
    std::ranges::sort(strip_);
}

void TokenShard::check_offsets() const {
    for (std::size_t c = 0; c < lists_.size(); ++c) {
        const TokenLists& lists = lists_[c];
        std::int64_t bad = 0;
        reading([&] { bad = first_bad_row(lists); });
        if (bad == lists.rows) continue;
        const std::int64_t document = rows_.before(static_cast<std::int64_t>(c)) + bad;
        refuse_row(lists, bad, document, name_);
    }
}

TokenSpan TokenShard::stored(std::int64_t document) const noexcept {
    if (lists_.empty()) return spans_[at(document)];
    const std::int64_t lists = lists_.size() == 1 ? 0 : rows_.find(document);
    return row_of(lists_[at(lists)], document - rows_.before(lists), bytes_);
}

bool TokenShard::strips(const std::byte* token) const noexcept {
    return std::ranges::binary_search(strip_, widened(token, dtype_));
}

TokenSpan TokenShard::stripped(TokenSpan span) const noexcept {
    while (span.length > 0 && strips(span.data)) {
        span.data += bytes_;
        --span.length;
    }
    while (span.length > 0 && strips(span.data + (span.length - 1) * bytes_))
        --span.length;
    return span;
}

TokenShard TokenShard::part(const DocumentPart& part) const {
    TokenShard copy = *this;
    copy.parts_.push_back(part);
    return copy;
}

bool TokenShard::in_parts(std::int64_t document) const noexcept {
    return std::ranges::all_of(parts_, [document](const DocumentPart& part) {
        const std::uint64_t hash = key(part.state, static_cast<std::uint64_t>(document));
        return part.first <= hash && hash <= part.last;
    });
}

TokenShard::View TokenShard::view(std::int64_t document) const noexcept {
    if (!parts_.empty() && !in_parts(document)) return View{nullptr, -1};
    TokenSpan span = stored(document);
    if (!strip_.empty()) span = stripped(span);
    return span.length < min_length_ ? View{nullptr, -1} : View{span.data, span.length};
}

void TokenShard::lengths(std::int64_t first, std::span<std::int64_t> out) const {
    reading([&] {
        for (std::size_t i = 0; i < out.size(); ++i) {
            out[i] = view(first + static_cast<std::int64_t>(i)).length;
        }
    });
}

TokenShard::Totals TokenShard::totals() const {
    Totals sums{.documents = documents_};
    const bool filtered = !strip_.empty() || min_length_ > 0 || !parts_.empty();
    const bool nulls =
        std::ranges::any_of(lists_, [](const TokenLists& c) { return c.validity != nullptr; });
    reading([&] {
        if (lists_.empty() || filtered || nulls) {
            for (std::int64_t document = 0; document < documents_; ++document) {
                sums.tokens += stored(document).length;
                const std::int64_t length = view(document).length;
                sums.kept_documents += length < 0 ? 0 : 1;
                sums.kept_tokens += std::max<std::int64_t>(length, 0);
            }
            return;
        }
        for (const TokenLists& lists : lists_) {
            if (lists.rows == 0) continue;
            sums.tokens += lists.offset_bytes == 0 ? lists.rows * lists.width
                                                   : offset(lists, lists.rows) - offset(lists, 0);
        }
        sums.kept_documents = documents_;
        sums.kept_tokens = sums.tokens;
    });
    return sums;
}

void TokenShard::copy(std::int64_t document, std::span<std::byte> out) const {
    const auto room = static_cast<std::int64_t>(out.size()) / bytes_;
    std::int64_t length = 0;
    reading([&] {
        const View found = view(document);
        length = std::max<std::int64_t>(found.length, 0);
        if (length == room && room > 0) std::memcpy(out.data(), found.data, out.size());
    });
    if (length != room) refuse_changed(document, room, length);
}

void TokenShard::refuse_changed(std::int64_t document, std::int64_t was, std::int64_t now) const {
    throw FileChanged("'" + name_ + "' was written to while it was mapped: document " +
                      std::to_string(document) + " had " + std::to_string(was) +
                      " tokens and has " + std::to_string(now) +
                      ", expected files that stay as they are");
}

}  // namespace windeck
