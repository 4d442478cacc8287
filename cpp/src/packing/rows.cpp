#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "packing/kernels/pack.hpp"
#include "windeck/base/dispatch.hpp"
#include "windeck/base/guard.hpp"
#include "windeck/base/parallel.hpp"
#include "windeck/packing/packing.hpp"
#include "windeck/tokens/tokens.hpp"

namespace windeck {

const PackKernels& pack_kernels() {
    switch (simd()) {
#ifdef WINDECK_X86
        case Simd::avx512:
            return avx512::pack_kernels;
        case Simd::avx2:
            return avx2::pack_kernels;
#endif
        default:
            return baseline::pack_kernels;
    }
}

namespace {

/// The fewest tokens of a batch per thread.
constexpr std::int64_t tokens_per_share = 1 << 15;

/// Bytes of a document to prefetch; the processor prefetches the rest by itself.
constexpr std::int64_t fetched_ahead = 4096;

std::size_t at(std::int64_t position) {
    return static_cast<std::size_t>(position);
}

std::size_t width_of(DType dtype) {
    return dtype == DType::int64 ? 0 : 1;
}

/// The error of a row, as plain data, since a fault may end the function that writes it.
struct WriteError {
    enum Kind { none, changed, absent, misfit };
    Kind kind = none;
    std::int64_t document_run = 0;
    std::int64_t place = 0;
    std::int64_t token = 0;  // the value, or its bits
    bool is_unsigned = false;
};

std::string value_text(const WriteError& error) {
    if (error.is_unsigned) return std::to_string(static_cast<std::uint64_t>(error.token));
    return std::to_string(error.token);
}

/// Writes rows. Its functions neither allocate nor throw: a fault in mapped memory leaves them by a
/// long jump.
class RowWriter {
  public:
    RowWriter(std::span<const DocumentRun* const> document_runs, const PieceSpans& pieces,
              const PackOut& out)
        : document_runs_(document_runs),
          pieces_(pieces),
          out_(out),
          kernels_(pack_kernels()),
          width_(width_of(out.dtype)),
          bytes_(size_of(out.dtype)) {}

    WriteError error;

    void rows(std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            if (!one_row(row)) return;
        }
    }

  private:
    bool one_row(std::int64_t row) {
        row_ = row;
        column_ = piece_ = lead_ = 0;
        if (out_.frame.bos) put(lead_++, *out_.frame.bos);
        for (std::int64_t p = pieces_.row_offsets[at(row)]; p < pieces_.row_offsets[at(row + 1)];
             ++p) {
            if (!one_row_piece(p)) return false;
        }
        if (lead_ > 0) end_piece(lead_);
        if (out_.frame.eos) {
            // The piece before is written again, longer by a token.
            column_ -= piece_;
            put(column_ + piece_, *out_.frame.eos);
            end_piece(piece_ + 1);
        }
        if (const std::int64_t left = out_.length + 1 - column_; left > 0) {
            for (std::int64_t i = 0; i < left; ++i)
                put(column_ + i, out_.pad);
            if (out_.targets_mask != nullptr) mask(left, 0);
            count(left);
        }
        return true;
    }

    /// Numbers the next tokens of the row, which are written, as a piece.
    void end_piece(std::int64_t tokens) {
        if (out_.targets_mask != nullptr) mask(tokens, 1);
        count(tokens);
        column_ += tokens;
        piece_ = tokens;
        lead_ = 0;
    }

    bool one_row_piece(std::int64_t p) {
        error.document_run = pieces_.document_run_of[at(p)];
        const DocumentRun& document_run = *document_runs_[at(error.document_run)];
        std::int64_t left = pieces_.lengths[at(p)];
        if (left == 0) return true;
        error.place = document_run.find(pieces_.starts[at(p)]);
        std::int64_t within = pieces_.starts[at(p)] - document_run.before(error.place);
        for (; left > 0; ++error.place, within = 0) {
            const std::int64_t framed =
                document_run.before(error.place + 1) - document_run.before(error.place);
            const std::int64_t taken = std::min(left, framed - within);
            if (taken == 0) continue;
            if (!document(document_run, within, taken, framed)) return false;
            end_piece(lead_ + taken);
            left -= taken;
        }
        return true;
    }

    /// Writes tokens [within, within + taken) of the current framed document to the current column,
    /// after the lead.
    bool document(const DocumentRun& document_run, std::int64_t within, std::int64_t taken,
                  std::int64_t framed) {
        const Frame& frame = document_run.frame();
        const std::int64_t lead = frame.bos ? 1 : 0;
        const std::int64_t body = framed - frame.tokens();
        const std::int64_t first = std::max(within - lead, std::int64_t{0});
        const std::int64_t last = std::min(within + taken - lead, body);
        std::int64_t column = column_ + lead_;
        if (frame.bos && within == 0) put(column++, *frame.bos);
        if (last > first) {
            const StoredTokens tokens = view(document_run, error.place);
            look_ahead(document_run, error.place + 1);
            if (tokens.length != body || tokens.data == nullptr) {
                error.kind = tokens.length != body ? WriteError::changed : WriteError::absent;
                return false;
            }
            const std::int64_t count = last - first;
            const std::byte* const from = tokens.data + first * size_of(tokens.dtype);
            if (!kernels_.copy[code(tokens.dtype)][width_](from, count, token(column))) {
                find_misfit(tokens, first, count);
                return false;
            }
            column += count;
        }
        if (frame.eos && within + taken == framed) put(column, *frame.eos);
        return true;
    }

    /// Consecutive pieces often read the same documents, so the last two views are cached.
    StoredTokens view(const DocumentRun& document_run, std::int64_t place) {
        CachedView& cached = cached_[at(place & 1)];
        if (cached.document_run != &document_run || cached.place != place)
            cached = {&document_run, place, document_run.view(place)};
        return cached.tokens;
    }

    /// Prefetches the next document while this one is written: documents are in random places, and
    /// each would otherwise wait for memory several times.
    void look_ahead(const DocumentRun& document_run, std::int64_t place) {
        if (place >= document_run.documents()) return;
        const StoredTokens next = view(document_run, place);
        const std::int64_t bytes = std::min(next.length * size_of(next.dtype), fetched_ahead);
        for (std::int64_t i = 0; i < bytes && next.data != nullptr; i += 64)
            __builtin_prefetch(next.data + i);
    }

    /// Finds the first of `count` tokens that does not fit. A value may have changed meanwhile.
    void find_misfit(const StoredTokens& tokens, std::int64_t first, std::int64_t count) {
        const auto& copy = kernels_.copy[code(tokens.dtype)];
        error.kind = WriteError::misfit;
        error.is_unsigned = tokens.dtype == DType::uint64;
        for (std::int64_t i = first; i < first + count; ++i) {
            const std::byte* const from = tokens.data + i * size_of(tokens.dtype);
            std::int64_t narrow = 0;
            const bool fits = copy[width_](from, 1, &narrow);
            // To 64 bits the bits are right even where a uint64 does not fit.
            copy[0](from, 1, &error.token);
            if (!fits) return;
        }
    }

    std::byte* token(std::int64_t column) const {
        return out_.tokens + (row_ * (out_.length + 1) + column) * bytes_;
    }

    void put(std::int64_t column, std::int64_t value) {
        if (width_ == 0) {
            std::memcpy(token(column), &value, sizeof value);
        } else {
            const auto narrow = static_cast<std::int32_t>(value);
            std::memcpy(token(column), &narrow, sizeof narrow);
        }
    }

    /// position_ids 0, 1, ... for `tokens` tokens; a row's last token has none.
    void count(std::int64_t tokens) {
        const std::int64_t ids = std::min(tokens, out_.length - column_);
        std::byte* const to = out_.position_ids + (row_ * out_.length + column_) * bytes_;
        if (ids > 0) kernels_.count[width_](ids, to);
    }

    void mask(std::int64_t tokens, std::uint8_t value) {
        std::uint8_t* const to = out_.targets_mask + row_ * out_.length + column_;
        const std::int64_t inside = std::min(tokens, out_.length - column_);
        if (inside > 0) std::memset(to, value, at(inside));
        // The target of a piece's last token is the first of another piece.
        if (tokens - 1 < inside) to[tokens - 1] = 0;
    }

    std::span<const DocumentRun* const> document_runs_;
    const PieceSpans& pieces_;
    const PackOut& out_;
    const PackKernels& kernels_;
    std::size_t width_;
    std::int64_t bytes_;
    std::int64_t row_ = 0;
    std::int64_t column_ = 0;  // after the last piece
    std::int64_t piece_ = 0;   // the tokens of the last piece
    std::int64_t lead_ = 0;    // the tokens of the row's frame before the first row piece

    struct CachedView {
        const DocumentRun* document_run = nullptr;
        std::int64_t place = 0;
        StoredTokens tokens;
    };
    std::array<CachedView, 2> cached_;
};

[[noreturn]] void refuse(const WriteError& error, std::span<const DocumentRun* const> document_runs,
                         DType dtype) {
    const DocumentRun& document_run = *document_runs[at(error.document_run)];
    const std::string document = document_run.describe(error.place);
    if (error.kind == WriteError::changed) {
        throw FileChanged(document +
                          " has another length than a moment ago, expected files that "
                          "stay as they are");
    }
    if (error.kind == WriteError::absent) {
        throw std::invalid_argument(document +
                                    " is there by its length alone, expected its tokens as well");
    }
    throw std::invalid_argument(document + " holds token " + value_text(error) + ", which " +
                                name(dtype) + " cannot hold");
}

}  // namespace

void check_pieces(std::span<const DocumentRun* const> document_runs, const PieceSpans& pieces,
                  const PackOut& out) {
    const auto count = static_cast<std::int64_t>(pieces.document_run_of.size());
    const std::int64_t content = out.content();
    const auto fail = [](const std::string& what) { throw std::invalid_argument(what); };
    if (content < 0) {
        fail("the frame of a row has " + std::to_string(out.frame.tokens()) +
             " tokens, expected at most the " + std::to_string(out.length + 1) + " of the row");
    }
    if (pieces.starts.size() != pieces.document_run_of.size() ||
        pieces.lengths.size() != pieces.document_run_of.size()) {
        fail("document_run_of, starts and lengths have " + std::to_string(count) + ", " +
             std::to_string(pieces.starts.size()) + " and " +
             std::to_string(pieces.lengths.size()) + " entries, expected one each for a piece");
    }
    if (pieces.row_offsets.empty() || pieces.row_offsets.front() != 0 ||
        pieces.row_offsets.back() != count || !std::ranges::is_sorted(pieces.row_offsets)) {
        fail("row_offsets do not lead from 0 to " + std::to_string(count) +
             ", expected offsets that do not decrease");
    }
    for (std::int64_t row = 0; row + 1 < static_cast<std::int64_t>(pieces.row_offsets.size());
         ++row) {
        std::int64_t tokens = 0;
        for (std::int64_t p = pieces.row_offsets[at(row)]; p < pieces.row_offsets[at(row + 1)];
             ++p) {
            const std::int64_t document_run = pieces.document_run_of[at(p)];
            const std::int64_t start = pieces.starts[at(p)];
            const std::int64_t length = pieces.lengths[at(p)];
            if (document_run < 0 ||
                document_run >= static_cast<std::int64_t>(document_runs.size())) {
                fail("piece " + std::to_string(p) + " is of document run " +
                     std::to_string(document_run) + ", expected one of " +
                     std::to_string(document_runs.size()));
            }
            if (start < 0 || length < 0 || length > document_runs[at(document_run)]->total() ||
                start > document_runs[at(document_run)]->total() - length) {
                fail("piece " + std::to_string(p) + " has " + std::to_string(length) +
                     " tokens from " + std::to_string(start) + " on, expected a part of the " +
                     std::to_string(document_runs[at(document_run)]->total()) +
                     " tokens of its document run");
            }
            tokens = length > content - tokens ? content + 1 : tokens + length;
        }
        if (tokens > content || (out.targets_mask == nullptr && tokens < content)) {
            fail("row " + std::to_string(row) + " has " +
                 (tokens > content ? "more than " : "less than ") + std::to_string(content) +
                 " tokens, expected " + (out.targets_mask == nullptr ? "exactly" : "at most") +
                 " as many");
        }
    }
}

void pack(std::span<const DocumentRun* const> document_runs, const PieceSpans& pieces,
          const PackOut& out, int threads) {
    const std::int64_t grain =
        std::max<std::int64_t>(tokens_per_share / (out.length + 1), std::int64_t{1});
    const bool mapped = std::ranges::any_of(document_runs, &DocumentRun::mapped);
    parallel_for(out.rows, grain, threads, [&](std::int64_t begin, std::int64_t end) {
        RowWriter writer(document_runs, pieces, out);
        if (!mapped) {
            writer.rows(begin, end);
        } else if (!guarded([&] { writer.rows(begin, end); })) {
            document_runs[at(writer.error.document_run)]->confirm(false);
        }
        if (writer.error.kind != WriteError::none) refuse(writer.error, document_runs, out.dtype);
    });
    for (const DocumentRun* const document_run : document_runs)
        document_run->confirm(true);
}

namespace {

/// Appends the first ids of the pieces, last first.
template <typename Id>
void append_starts(const Id* ids, std::int64_t count, std::vector<std::int32_t>& out) {
    for (std::int64_t end = count; end > 0;) {
        const std::int64_t last = end - 1, counted = ids[last];
        if (counted < 0 || counted > last || ids[last - counted] != 0) {
            throw std::invalid_argument("position_ids has " + std::to_string(counted) + " at " +
                                        std::to_string(last) +
                                        ", expected the distance from the last 0");
        }
        end = last - counted;
        out.push_back(static_cast<std::int32_t>(end));
    }
}

}  // namespace

std::vector<std::int32_t> sequence_bounds(const void* ids, std::int64_t count, DType dtype) {
    if (count > std::numeric_limits<std::int32_t>::max()) {
        throw std::invalid_argument("a batch of " + std::to_string(count) +
                                    " tokens has no int32 cu_seqlens, expected less than 2^31");
    }
    std::vector<std::int32_t> bounds{static_cast<std::int32_t>(count)};
    if (dtype == DType::int64) {
        append_starts(static_cast<const std::int64_t*>(ids), count, bounds);
    } else {
        append_starts(static_cast<const std::int32_t*>(ids), count, bounds);
    }
    std::ranges::reverse(bounds);
    return bounds;
}

}  // namespace windeck
