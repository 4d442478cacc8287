#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "numbers.hpp"
#include "windeck/packing/packing.hpp"
#include "windeck/tokens/tokens.hpp"

using namespace windeck;

namespace {

/// Documents in memory, and the shard of them.
template <typename T>
struct Texts {
    std::vector<T> values;
    Numbers offsets{0};

    void add(const std::vector<T>& document) {
        values.insert(values.end(), document.begin(), document.end());
        offsets.push_back(static_cast<std::int64_t>(values.size()));
    }

    TokenShard shard(DType dtype, TokenFilter filter = {}) const {
        TokenLists lists;
        lists.values = reinterpret_cast<const std::byte*>(values.data());
        lists.count = static_cast<std::int64_t>(values.size());
        lists.offsets = reinterpret_cast<const std::byte*>(offsets.data());
        lists.offset_bytes = 8;
        lists.rows = static_cast<std::int64_t>(offsets.size()) - 1;
        return TokenShard(dtype, std::vector<TokenLists>{lists}, std::move(filter), {}, "texts");
    }

    /// The framed tokens of a document.
    Numbers framed(std::int64_t document, const Frame& frame) const {
        Numbers out;
        if (frame.bos) out.push_back(*frame.bos);
        for (std::int64_t i = offsets[at(document)]; i < offsets[at(document + 1)]; ++i)
            out.push_back(static_cast<std::int64_t>(values[at(i)]));
        if (frame.eos) out.push_back(*frame.eos);
        return out;
    }
};

template <typename T>
Texts<T> random_texts(std::int64_t documents) {
    Texts<T> texts;
    for (std::int64_t d = 0; d < documents; ++d) {
        std::vector<T> document(at(draw(0, 3) == 0 ? 0 : draw(0, 40)));
        for (T& token : document)
            token = static_cast<T>(draw(0, 127));
        texts.add(document);
    }
    return texts;
}

Frame random_frame() {
    Frame frame;
    if (draw(0, 1) == 1) frame.bos = 1000;
    if (draw(0, 1) == 1) frame.eos = 2000;
    return frame;
}

// --- rows

struct Batch {
    std::vector<std::int64_t> tokens, ids;
    std::vector<std::uint8_t> mask;
};

/// The same batch as int64 and, cast back, as int32.
Batch packed(const std::vector<const DocumentRun*>& document_runs, const Pieces& pieces,
             std::int64_t length, bool padded, DType dtype, int threads, const Frame& frame = {}) {
    PackOut out;
    out.dtype = dtype;
    out.rows = static_cast<std::int64_t>(pieces.row_offsets.size()) - 1;
    out.length = length;
    out.pad = -5;
    out.frame = frame;
    Batch batch{Numbers(at(out.rows * (length + 1)), -1), Numbers(at(out.rows * length), -1),
                std::vector<std::uint8_t>(at(out.rows * length), 2)};
    std::vector<std::int32_t> tokens(batch.tokens.size()), ids(batch.ids.size());
    const bool wide = dtype == DType::int64;
    out.tokens = wide ? reinterpret_cast<std::byte*>(batch.tokens.data())
                      : reinterpret_cast<std::byte*>(tokens.data());
    out.position_ids = wide ? reinterpret_cast<std::byte*>(batch.ids.data())
                            : reinterpret_cast<std::byte*>(ids.data());
    if (padded) out.targets_mask = batch.mask.data();
    const PieceSpans spans{pieces.row_offsets, pieces.document_run_of, pieces.starts,
                           pieces.lengths};
    check_pieces(document_runs, spans, out);
    pack(document_runs, spans, out, threads);
    if (!wide) {
        batch.tokens.assign(tokens.begin(), tokens.end());
        batch.ids.assign(ids.begin(), ids.end());
    }
    return batch;
}

template <typename T>
void rows_of(DType stored) {
    for (int round = 0; round < 60; ++round) {
        const Texts<T> texts = random_texts<T>(draw(1, 50));
        const TokenShard shard = texts.shard(stored);
        const Frame frame = random_frame();
        std::optional<Permutation> order;
        if (draw(0, 1) == 1) order.emplace(static_cast<std::uint64_t>(shard.documents()), 11, 2);
        const DocumentRun document_run(shard, order, frame, 2);
        Numbers stream, counts;  // every token of the document run, and where it is in its document
        for (std::int64_t place = 0; place < document_run.documents(); ++place) {
            const Numbers document = texts.framed(document_run.at(place), frame);
            check(document_run.before(place) == static_cast<std::int64_t>(stream.size()), "before");
            check(document_run.index_of(document_run.at(place)) == place, "index_of");
            stream.insert(stream.end(), document.begin(), document.end());
            for (std::size_t i = 0; i < document.size(); ++i)
                counts.push_back(static_cast<std::int64_t>(i));
        }
        check(document_run.total() == static_cast<std::int64_t>(stream.size()), "total");
        const std::int64_t length = draw(1, 30);
        const bool padded = draw(0, 1) == 1;
        Frame of_row;
        if (length > 1 && draw(0, 1) == 1) of_row = {-7, std::nullopt};
        if (length > 1 && draw(0, 1) == 1) of_row.eos = -8;
        Pieces pieces;
        Batch expected;
        for (std::int64_t row = 0; row < 40; ++row) {
            std::int64_t left = length + 1 - of_row.tokens();
            Numbers ids;
            if (of_row.bos) {
                expected.tokens.push_back(-7);
                ids.push_back(0);
            }
            bool is_first = of_row.bos.has_value();  // of the row, so it continues its bos
            while (left > 0 && document_run.total() > 0 && !(padded && draw(0, 2) == 0)) {
                const std::int64_t start = draw(0, document_run.total() - 1);
                const std::int64_t taken = draw(0, std::min(left, document_run.total() - start));
                pieces.add(0, start, taken);
                left -= taken;
                for (std::int64_t i = 0; i < taken; ++i) {
                    expected.tokens.push_back(stream[at(start + i)]);
                    const bool begins = i == 0 || counts[at(start + i)] == 0;
                    ids.push_back(begins && !is_first ? 0 : ids.back() + 1);
                    is_first = false;
                }
            }
            if (!padded && left > 0) return;  // no token to fill rows with
            pieces.end_row();
            if (of_row.eos) {
                expected.tokens.push_back(-8);
                ids.push_back(ids.empty() ? 0 : ids.back() + 1);
            }
            expected.tokens.insert(expected.tokens.end(), at(left), -5);
            for (std::int64_t i = 0; i < left; ++i)
                ids.push_back(i);
            expected.ids.insert(expected.ids.end(), ids.begin(), ids.end() - 1);
            // Within a piece, the next token has the next id unless a document ends between.
            const std::size_t filled = at(length + 1 - left);
            for (std::size_t i = 0; i < at(length); ++i)
                expected.mask.push_back(i + 1 < filled && ids[i + 1] == ids[i] + 1 ? 1 : 0);
        }
        for (const DType dtype : {DType::int64, DType::int32}) {
            const Batch batch = packed({&document_run}, pieces, length, padded, dtype, 3, of_row);
            check(batch.tokens == expected.tokens, "tokens");
            check(batch.ids == expected.ids, "position_ids");
            if (padded) check(batch.mask == expected.mask, "targets_mask");
        }
    }
}

void blocks() {
    const auto first = random_texts<std::uint16_t>(30);
    const auto second = random_texts<std::int8_t>(20);
    const TokenShard shards[2] = {first.shard(DType::uint16), second.shard(DType::int8, {{}, 3})};
    const Frame frame{1, std::nullopt};
    for (const auto copy : {DocumentBlock::Take::copies, DocumentBlock::Take::addresses}) {
        DocumentBlock block(5);
        block.read(shards[0], Numbers{29, 3}, Numbers{4, 0}, copy);
        block.read(shards[1], Numbers{0, 1, 19}, Numbers{1, 3, 2}, copy);
        const DocumentRun document_run(block, frame);
        Numbers stream;
        const auto append = [&](const Numbers& tokens, bool kept) {
            if (kept) stream.insert(stream.end(), tokens.begin(), tokens.end());
        };
        append(first.framed(3, frame), true);
        for (const std::int64_t document : {0, 19, 1}) {
            const Numbers tokens = second.framed(document, frame);
            append(tokens, tokens.size() >= 4);  // with its BOS
        }
        append(first.framed(29, frame), true);
        check(document_run.total() == static_cast<std::int64_t>(stream.size()), "total of a block");
        Pieces pieces;
        pieces.add(0, 0, document_run.total());
        pieces.end_row();
        check(packed({&document_run}, pieces, document_run.total() - 1, false, DType::int64, 1)
                      .tokens == stream,
              "a block");
        // The same by lengths, and only what is needed with its tokens.
        DocumentBlock part = block.without_tokens();
        const DocumentRun without_tokens(part, frame);
        check(without_tokens.total() == document_run.total(), "total of a block without tokens");
        check_throws<std::invalid_argument>(
            [&] {
                (void)packed({&without_tokens}, pieces, document_run.total() - 1, false,
                             DType::int64, 1);
            },
            "of 'texts' is there by its length alone, expected its tokens as well");
        part.read(shards[0], Numbers{29}, Numbers{4}, copy);
        const DocumentRun last(part, frame);
        Pieces end;
        end.add(0, document_run.before(4), document_run.total() - document_run.before(4));
        end.end_row();
        const Numbers tokens = first.framed(29, frame);
        if (tokens.size() > 1) {
            const auto length = static_cast<std::int64_t>(tokens.size()) - 1;
            check(packed({&last}, end, length, false, DType::int64, 1).tokens == tokens, "part");
        }
        check(document_run.describe(0) == "document 3 of 'texts'", "the name of a document");
        check_throws<std::out_of_range>(
            [&] { block.read(shards[0], Numbers{30}, Numbers{0}, copy); },
            "document 30 for place 0 is out of range for 30 documents and 5 places");
    }
}

void block_sums() {
    const auto texts = random_texts<std::int32_t>(3000);
    const TokenShard shard = texts.shard(DType::int32);
    const Permutation order(5000, 9);
    const Frame frame{std::nullopt, 7};
    Numbers sums(5), expected(5);
    add_block_sums(shard, order, 2000, 1024, frame, sums, 3);
    for (std::int64_t d = 0; d < 3000; ++d) {
        const auto place =
            static_cast<std::int64_t>(order.index_of(static_cast<std::uint64_t>(2000 + d)));
        expected[at(place / 1024)] += static_cast<std::int64_t>(texts.framed(d, frame).size());
    }
    check(sums == expected, "block sums");
    check_throws<std::invalid_argument>(
        [&] { add_block_sums(shard, order, 2001, 1024, frame, sums, 1); },
        "documents 2001 to 5001 of 5000 in blocks of 1024 do not fit the 5 sums");
}

// --- errors

void refuses() {
    Texts<std::int64_t> texts;
    texts.add({1, 2, 3});
    texts.add({4, std::int64_t{1} << 31, 5});
    const TokenShard shard = texts.shard(DType::int64);
    const DocumentRun document_run(shard, std::nullopt, {}, 1);
    const auto rows = [&](std::int64_t of, std::int64_t start, std::int64_t length,
                          std::int64_t row) {
        Pieces pieces;
        pieces.add(of, start, length);
        pieces.end_row();
        return [=, &document_run] {
            (void)packed({&document_run}, pieces, row, false, DType::int32, 1);
        };
    };
    using std::invalid_argument;
    check_throws<invalid_argument>(rows(1, 0, 3, 2),
                                   "piece 0 is of document run 1, expected one of 1");
    check_throws<invalid_argument>(rows(0, 4, 3, 2), "piece 0 has 3 tokens from 4 on");
    check_throws<invalid_argument>(rows(0, -1, 3, 2), "piece 0 has 3 tokens from -1 on");
    check_throws<invalid_argument>(rows(0, 0, 2, 2), "row 0 has less than 3 tokens");
    check_throws<invalid_argument>(rows(0, 0, 4, 2), "row 0 has more than 3 tokens");
    check_throws<invalid_argument>(
        rows(0, 3, 3, 2), "document 1 of 'texts' holds token 2147483648, which int32 cannot hold");
    rows(0, 0, 3, 2)();
    check_throws<invalid_argument>([&] { DocumentRun(shard, Permutation(3), {}, 1); },
                                   "the order is one of 3 documents, expected 2");
}

void bounds() {
    Numbers ids(10000);
    std::vector<std::int32_t> narrow(ids.size()), expected{0};
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const bool restarts = i == 0 || draw(0, 60) == 0;
        ids[i] = restarts ? 0 : ids[i - 1] + 1;
        narrow[i] = static_cast<std::int32_t>(ids[i]);
        if (restarts && i > 0) expected.push_back(static_cast<std::int32_t>(i));
    }
    expected.push_back(10000);
    check(sequence_bounds(ids.data(), 10000, DType::int64) == expected, "bounds of int64");
    check(sequence_bounds(narrow.data(), 10000, DType::int32) == expected, "bounds of int32");
    check(sequence_bounds(ids.data(), 0, DType::int64) == std::vector<std::int32_t>{0}, "none");
    using std::invalid_argument;
    check_throws<invalid_argument>(
        [&] { (void)sequence_bounds(ids.data(), std::int64_t{1} << 31, DType::int64); },
        "a batch of 2147483648 tokens has no int32 cu_seqlens");
    for (const auto& [wrong, message] :
         {std::pair{Numbers{0, 2}, "has 2 at 1"}, std::pair{Numbers{0, -1}, "has -1 at 1"},
          std::pair{Numbers{0, 7, 1}, "has 1 at 2"}}) {
        check_throws<invalid_argument>(
            [&] { (void)sequence_bounds(wrong.data(), std::ssize(wrong), DType::int64); }, message);
    }
}

}  // namespace

int main() {
    rows_of<std::int8_t>(DType::int8);
    rows_of<std::int16_t>(DType::int16);
    rows_of<std::int32_t>(DType::int32);
    rows_of<std::int64_t>(DType::int64);
    rows_of<std::uint8_t>(DType::uint8);
    rows_of<std::uint16_t>(DType::uint16);
    rows_of<std::uint32_t>(DType::uint32);
    rows_of<std::uint64_t>(DType::uint64);
    blocks();
    block_sums();
    refuses();
    bounds();
}
