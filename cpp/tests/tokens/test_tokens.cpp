#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "check.hpp"
#include "numbers.hpp"
#include "windeck/base/hash.hpp"
#include "windeck/tokens/tokens.hpp"

using namespace windeck;
using Documents = std::vector<Numbers>;

namespace {

template <typename T>
const std::byte* bytes(const std::vector<T>& values) {
    return reinterpret_cast<const std::byte*>(values.data());
}

/// The expected documents of a shard: stripped, and empty if filtered.
Documents expected(Documents documents, const TokenFilter& filter) {
    const auto strips = [&](std::int64_t token) {
        return std::ranges::find(filter.strip, token) != filter.strip.end();
    };
    for (Numbers& document : documents) {
        while (!document.empty() && strips(document.back()))
            document.pop_back();
        while (!document.empty() && strips(document.front()))
            document.erase(document.begin());
    }
    return documents;
}

template <typename T>
void equals(const TokenShard& shard, const Documents& raw, const TokenFilter& filter) {
    const Documents documents = expected(raw, filter);
    check(shard.documents() == static_cast<std::int64_t>(documents.size()), "documents");
    TokenShard::Totals totals{.documents = shard.documents()};
    Numbers lengths(documents.size());
    shard.lengths(0, lengths);
    for (std::size_t d = 0; d < documents.size(); ++d) {
        const auto length = static_cast<std::int64_t>(documents[d].size());
        totals.tokens += static_cast<std::int64_t>(raw[d].size());
        const TokenShard::View view = shard.view(static_cast<std::int64_t>(d));
        if (length < filter.min_length) {
            check(view.length == -1 && lengths[d] == -1, "filtered");
            continue;
        }
        ++totals.kept_documents;
        totals.kept_tokens += length;
        check(view.length == length && lengths[d] == length, "length");
        std::vector<T> found(documents[d].size());
        shard.copy(static_cast<std::int64_t>(d), std::as_writable_bytes(std::span(found)));
        check(std::ranges::equal(found, documents[d]), "tokens");
    }
    const TokenShard::Totals told = shard.totals();
    check(told.documents == totals.documents && told.tokens == totals.tokens &&
              told.kept_documents == totals.kept_documents &&
              told.kept_tokens == totals.kept_tokens,
          "totals");
}

template <typename T>
void random_documents(DType dtype) {
    for (int round = 0; round < 500; ++round) {
        Documents documents(at(draw(0, 9)));
        std::vector<T> values;
        std::vector<std::int32_t> offsets{0};
        for (Numbers& document : documents) {
            document.resize(static_cast<std::size_t>(draw(0, 1) * draw(0, 9)));
            for (std::int64_t& token : document) {
                token = draw(0, 3);
                values.push_back(static_cast<T>(token));
            }
            offsets.push_back(static_cast<std::int32_t>(values.size()));
        }
        TokenFilter filter{.strip = {}, .min_length = draw(0, 2)};
        for (std::int64_t i = draw(0, 2); i > 0; --i)
            filter.strip.push_back(draw(-1, 300));
        if (draw(0, 1) == 0) filter.strip.push_back(draw(0, 3));
        const auto count = static_cast<std::int64_t>(values.size());
        const auto rows = static_cast<std::int64_t>(documents.size());
        const TokenLists whole{.values = bytes(values),
                               .count = count,
                               .offsets = bytes(offsets),
                               .offset_bytes = 4,
                               .rows = rows};
        equals<T>(TokenShard(dtype, std::vector{whole}, filter, {}, "x"), documents, filter);

        // The same in two arrays with an empty one between.
        TokenLists first = whole;
        first.rows = draw(0, rows);
        TokenLists none = whole;
        none.rows = 0;
        none.offsets = nullptr;
        TokenLists second = whole;
        second.rows -= first.rows;
        second.offsets += 4 * first.rows;
        equals<T>(TokenShard(dtype, std::vector{first, none, second}, filter, {}, "x"), documents,
                  filter);

        std::vector<TokenSpan> spans;
        for (std::size_t d = 0; d < documents.size(); ++d) {
            const auto place = static_cast<std::size_t>(offsets[d]) * sizeof(T);
            spans.push_back({bytes(values) + place, offsets[d + 1] - offsets[d]});
        }
        equals<T>(TokenShard(dtype, spans, filter, {}, "x"), documents, filter);
    }
}

void nulls_and_one_width() {
    const std::vector<std::int16_t> values{1, 2, 3, 4, 5, 6, 7, 8};
    const std::vector<std::uint8_t> validity{0b1011'0111};
    const TokenLists lists{.values = bytes(values),
                           .count = 8,
                           .width = 2,
                           .rows = 4,
                           .validity = validity.data(),
                           .validity_offset = 3};
    const TokenShard shard(DType::int16, std::vector{lists}, {}, {}, "x");
    equals<std::int16_t>(shard, {{}, {3, 4}, {5, 6}, {}}, {});
}

/// No strip value of 64 signed bits is a token of 64 unsigned bits beyond them, nor the reverse.
void stripping_compares_values_not_bits() {
    const std::vector<std::uint64_t> large{std::numeric_limits<std::uint64_t>::max(), 7};
    const std::vector<TokenSpan> span{{bytes(large), 2}};
    check(
        TokenShard(DType::uint64, span, {.strip = {-1}, .min_length = 0}, {}, "x").view(0).length ==
            2,
        "uint64");
    const std::vector<std::int8_t> small{-1, 7, -1};
    const std::vector<TokenSpan> other{{bytes(small), 3}};
    check(
        TokenShard(DType::int8, other, {.strip = {255}, .min_length = 0}, {}, "x").view(0).length ==
            3,
        "255");
    check(
        TokenShard(DType::int8, other, {.strip = {-1}, .min_length = 0}, {}, "x").view(0).length ==
            1,
        "-1");
}

/// Documents at any bytes of one memory, also overlapping, and nothing outside of it.
void spans_of_one_memory() {
    const std::vector<std::uint8_t> memory{9, 1, 0, 2, 0, 3, 0, 9};
    const auto data = std::as_bytes(std::span(memory));
    const auto spans = [&](Numbers starts, Numbers lengths) {
        return token_spans(data, starts, lengths, DType::uint16, "x");
    };
    const TokenShard shard(DType::uint16, spans({1, 3, 8, 1}, {2, 2, 0, 3}), {}, {}, "x");
    equals<std::uint16_t>(shard, {{1, 2}, {2, 3}, {}, {1, 2, 3}}, {});
    const auto most = std::numeric_limits<std::int64_t>::max();
    for (const auto& [start, length] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {-1, 1}, {7, 1}, {9, 0}, {0, 5}, {0, -1}, {most, 1}, {0, most}, {8, most / 2 + 1}}) {
        const std::string message = "document 1 of 'x' has " + std::to_string(length) +
                                    " tokens from byte " + std::to_string(start);
        check_throws<std::invalid_argument>([&] { spans({0, start}, {1, length}); },
                                            message.c_str());
    }
    check_throws<std::invalid_argument>([&] { spans({0}, {}); }, "'x' has 1 starts and 0 lengths");
    check_throws<FileError>([&] { Descriptor(1 << 20, "x"); }, "of 'x' cannot be duplicated");
    Descriptor first(0, "x");
    const int number = first.number();
    Descriptor second(std::move(first));
    check(number > 0 && second.number() == number, "moved");
}

/// The file of a shard may be written to: a view stays inside, and a copy is refused.
void offsets_that_change() {
    const std::vector<std::int32_t> values{1, 2, 3};
    std::vector<std::int64_t> offsets{0, 2, 3};
    const TokenLists lists{.values = bytes(values),
                           .count = 3,
                           .offsets = bytes(offsets),
                           .offset_bytes = 8,
                           .rows = 2};
    const TokenShard shard(DType::int32, std::vector{lists}, {}, {}, "x");
    for (const Numbers& hostile :
         {Numbers{-9, 1LL << 60, -7}, Numbers{3, 2, 1}, Numbers{9, 9, 9}}) {
        offsets = hostile;
        for (const std::int64_t document : {0, 1}) {
            const TokenShard::View view = shard.view(document);
            check(view.length >= 0 && view.data >= bytes(values) &&
                      view.data + 4 * view.length <= bytes(values) + 12,
                  "inside");
        }
    }
    std::vector<std::int32_t> out(2);
    check_throws<FileChanged>(
        [&] { shard.copy(1, std::as_writable_bytes(std::span(out))); },
        "'x' was written to while it was mapped: document 1 had 2 tokens and has 0, expected");
}

/// A part keeps the documents whose key is in its range, and the numbers of all; a part of a part
/// keeps those of both.
void parts() {
    constexpr std::uint64_t top = std::numeric_limits<std::uint64_t>::max();
    const TokenFilter filter{.strip = {3}, .min_length = 2};
    const auto same = [](const TokenShard::View& one, const TokenShard::View& other) {
        return one.data == other.data && one.length == other.length;
    };
    for (int round = 0; round < 200; ++round) {
        Numbers lengths(at(draw(0, 40)));
        std::vector<std::int16_t> values;
        std::vector<TokenSpan> spans;
        for (std::int64_t& length : lengths) {
            length = draw(0, 6);
            for (std::int64_t i = 0; i < length; ++i)
                values.push_back(static_cast<std::int16_t>(draw(0, 4)));
        }
        std::int64_t start = 0;
        for (const std::int64_t length : lengths) {
            spans.push_back({bytes(values) + 2 * start, length});
            start += length;
        }
        const TokenShard whole(DType::int16, spans, filter, {}, "x");
        const auto documents = static_cast<std::int64_t>(lengths.size());
        const std::uint64_t state = static_cast<std::uint64_t>(draw(0, 1 << 30));
        const std::uint64_t other = state + 1;
        // A border that often is the key of a document, as bounds are included.
        const std::uint64_t border =
            documents > 0 ? key(state, static_cast<std::uint64_t>(draw(0, documents - 1))) : 7;
        const TokenShard low = whole.part({state, 0, border});
        const TokenShard high = border < top ? whole.part({state, border + 1, top}) : whole;
        const TokenShard both = low.part({other, 0, top / 2});
        std::int64_t kept = 0, tokens = 0;
        Numbers found(lengths.size());
        both.lengths(0, found);
        for (std::int64_t d = 0; d < documents; ++d) {
            const auto number = static_cast<std::uint64_t>(d);
            const TokenShard::View stored = whole.view(d);
            const TokenShard::View none{nullptr, -1};
            const bool is_low = key(state, number) <= border;
            const bool is_both = is_low && key(other, number) <= top / 2;
            check(same(low.view(d), is_low ? stored : none), "low part");
            check(border == top || same(high.view(d), is_low ? none : stored), "high part");
            check(same(both.view(d), is_both ? stored : none), "part of a part");
            check(found[at(d)] == (is_both ? stored.length : -1), "lengths of a part");
            if (is_both && stored.length >= 0) {
                ++kept;
                tokens += stored.length;
            }
        }
        const TokenShard::Totals totals = both.totals();
        check(totals.documents == documents && totals.tokens == start &&
                  totals.kept_documents == kept && totals.kept_tokens == tokens,
              "totals of a part");
        check(whole.part({state, 0, top}).totals().kept_tokens == whole.totals().kept_tokens,
              "a part of all");
        check(whole.part({state, 1, 0}).totals().kept_documents == 0, "a part of none");
        check(both.documents() == documents && both.dtype() == whole.dtype() && both.name() == "x",
              "what a part has of its shard");
    }
}

/// The memory lives as long as a part of the shard does.
void a_part_owns_the_memory() {
    auto values = std::make_shared<std::vector<std::int32_t>>(std::vector<std::int32_t>{1, 2, 3});
    const std::weak_ptr<const void> memory = values;
    const std::vector<TokenSpan> spans{{bytes(*values), 3}};
    TokenMemory owner;
    owner.owner = std::move(values);
    std::optional<TokenShard> whole;
    whole.emplace(DType::int32, spans, TokenFilter{}, std::move(owner), "x");
    std::optional<TokenShard> part;
    part.emplace(whole->part({5, 0, std::numeric_limits<std::uint64_t>::max()}));
    whole.reset();
    check(!memory.expired(), "memory of a part");
    std::vector<std::int32_t> found(3);
    part->copy(0, std::as_writable_bytes(std::span(found)));
    check(found == std::vector<std::int32_t>{1, 2, 3}, "tokens of a part");
    part.reset();
    check(memory.expired(), "memory without parts");
}

void refuses() {
    const std::vector<std::int32_t> values{1, 2, 3};
    const auto shard_of = [&](const Numbers& offsets) {
        return [&values, offsets] {
            const TokenLists lists{.values = bytes(values),
                                   .count = 3,
                                   .offsets = bytes(offsets),
                                   .offset_bytes = 8,
                                   .rows = static_cast<std::int64_t>(offsets.size()) - 1};
            TokenShard(DType::int32, std::vector{lists}, {}, {}, "x");
        };
    };
    using std::invalid_argument;
    check_throws<invalid_argument>(shard_of({0, 2, 1, 3}),
                                   "document 1 of 'x' has the offsets 2 to 1");
    check_throws<invalid_argument>(shard_of({0, 2, 4}), "document 1 of 'x' has the offsets 2 to 4");
    check_throws<invalid_argument>(shard_of({-1, 2}), "expected offsets from 0 to 3 that never");
    const std::vector<TokenSpan> none;
    check_throws<invalid_argument>([&] { TokenShard(DType::float32, none, {}, {}, "x"); },
                                   "tokens of 'x' are float32, expected integers");
    check_throws<invalid_argument>(
        [&] { TokenShard(DType::int8, none, {.strip = {}, .min_length = -1}, {}, "x"); },
        "min_length is -1, expected 0 or more");
    const TokenLists wide{.values = bytes(values), .count = 3, .width = 2, .rows = 2};
    check_throws<invalid_argument>(
        [&] { TokenShard(DType::int32, std::vector{wide}, {}, {}, "x"); },
        "document 1 of 'x' ends after the 3 values, expected 2 values");
}

}  // namespace

int main() {
    random_documents<std::int8_t>(DType::int8);
    random_documents<std::int16_t>(DType::int16);
    random_documents<std::int32_t>(DType::int32);
    random_documents<std::int64_t>(DType::int64);
    random_documents<std::uint8_t>(DType::uint8);
    random_documents<std::uint16_t>(DType::uint16);
    random_documents<std::uint32_t>(DType::uint32);
    random_documents<std::uint64_t>(DType::uint64);
    nulls_and_one_width();
    stripping_compares_values_not_bits();
    spans_of_one_memory();
    offsets_that_change();
    parts();
    a_part_owns_the_memory();
    refuses();
}
