#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "windeck/base/parallel.hpp"
#include "windeck/packing/packing.hpp"
#include "windeck/tokens/tokens.hpp"

namespace windeck {
namespace {

/// The documents of a portion, which one thread reads at once.
constexpr std::int64_t share = 1024;

std::size_t to_size(std::int64_t position) {
    return static_cast<std::size_t>(position);
}

/// lengths[i] = length of document documents[i]; -1 for a filtered one.
void read_lengths(const TokenShard& shard, std::span<const std::int64_t> documents,
                  std::int64_t* lengths) {
    shard.reading([&] {
        for (std::size_t i = 0; i < documents.size(); ++i)
            lengths[i] = shard.view(documents[i]).length;
    });
}

/// Framed lengths to their sums: sums[0] is 0 already, sums[i + 1] holds the length of place i.
void sum_up(std::vector<std::int64_t>& sums) {
    for (std::size_t i = 1; i < sums.size(); ++i) {
        if (__builtin_add_overflow(sums[i - 1], sums[i], &sums[i])) {
            throw std::overflow_error("the documents hold more than 2^63 - 1 tokens");
        }
    }
}

}  // namespace

DocumentBlock::DocumentBlock(std::int64_t places)
    : tokens_(to_size(places)), documents_(to_size(places), -1), name_of_(to_size(places), -1) {}

void DocumentBlock::read(const TokenShard& shard, std::span<const std::int64_t> documents,
                         std::span<const std::int64_t> places, Take take) {
    for (std::size_t i = 0; i < documents.size(); ++i) {
        if (documents[i] >= 0 && documents[i] < shard.documents() && places[i] >= 0 &&
            places[i] < static_cast<std::int64_t>(tokens_.size()))
            continue;
        throw std::out_of_range("document " + std::to_string(documents[i]) + " for place " +
                                std::to_string(places[i]) + " is out of range for " +
                                std::to_string(shard.documents()) + " documents and " +
                                std::to_string(tokens_.size()) + " places");
    }
    const DType dtype = shard.dtype();
    // The block changes only after all reads have succeeded.
    std::vector<StoredTokens> found(documents.size());
    shard.reading([&] {
        for (std::size_t i = 0; i < documents.size(); ++i) {
            const TokenShard::View view = shard.view(documents[i]);
            found[i] = {view.data, view.length, dtype};
        }
    });
    names_.reserve(names_.size() + 1);
    if (take == Take::copies) copy_out(shard, found);
    if (take == Take::addresses) shards_.push_back(&shard);
    if (take == Take::lengths) {
        for (StoredTokens& tokens : found)
            tokens.data = nullptr;
    }
    names_.push_back(shard.name());
    for (std::size_t i = 0; i < documents.size(); ++i) {
        const std::size_t place = to_size(places[i]);
        tokens_[place] = found[i];
        documents_[place] = documents[i];
        name_of_[place] = static_cast<std::int32_t>(names_.size()) - 1;
    }
}

DocumentBlock DocumentBlock::without_tokens() const {
    DocumentBlock out(static_cast<std::int64_t>(tokens_.size()));
    out.documents_ = documents_;
    out.name_of_ = name_of_;
    out.names_ = names_;
    for (std::size_t place = 0; place < tokens_.size(); ++place)
        out.tokens_[place] = {nullptr, tokens_[place].length, tokens_[place].dtype};
    return out;
}

void DocumentBlock::copy_out(const TokenShard& shard, std::span<StoredTokens> found) {
    const auto bytes_of = [](const StoredTokens& tokens) {
        return std::max<std::int64_t>(tokens.length, 0) * size_of(tokens.dtype);
    };
    std::int64_t bytes = 0;
    for (const StoredTokens& tokens : found)
        bytes += bytes_of(tokens);
    std::vector<std::byte> memory(to_size(bytes));
    std::byte* const begin = memory.data();
    shard.reading([&] {
        std::byte* to = begin;
        for (StoredTokens& tokens : found) {
            if (tokens.length > 0) std::memcpy(to, tokens.data, to_size(bytes_of(tokens)));
            tokens.data = to;
            to += bytes_of(tokens);
        }
    });
    copies_.push_back(std::move(memory));
}

DocumentRun::DocumentRun(const TokenShard& shard, std::optional<Permutation> order, Frame frame,
                         int threads)
    : shard_(&shard), order_(std::move(order)), frame_(frame) {
    const std::int64_t n = shard.documents();
    if (order_ && order_->size() != static_cast<std::uint64_t>(n)) {
        throw std::invalid_argument("the order is one of " + std::to_string(order_->size()) +
                                    " documents, expected " + std::to_string(n));
    }
    sums_.assign(to_size(n) + 1, 0);
    parallel_for(n, share, threads, [&](std::int64_t begin, std::int64_t end) {
        std::array<std::int64_t, share> documents;
        const std::span<std::int64_t> wanted(documents.data(), to_size(end - begin));
        if (order_) {
            order_->slice(static_cast<std::uint64_t>(begin), wanted);
        } else {
            std::iota(wanted.begin(), wanted.end(), begin);
        }
        std::int64_t* const lengths = sums_.data() + 1 + begin;
        read_lengths(shard, wanted, lengths);
        for (std::int64_t i = 0; i < end - begin; ++i)
            lengths[i] = frame_.framed_length(lengths[i]);
    });
    sum_up(sums_);
}

DocumentRun::DocumentRun(const DocumentBlock& block, Frame frame) : block_(&block), frame_(frame) {
    sums_.reserve(block.tokens().size() + 1);
    sums_.push_back(0);
    for (const StoredTokens& tokens : block.tokens())
        sums_.push_back(frame_.framed_length(tokens.length));
    sum_up(sums_);
}

std::int64_t DocumentRun::at(std::int64_t place) const {
    return order_ ? static_cast<std::int64_t>(order_->at(static_cast<std::uint64_t>(place)))
                  : place;
}

std::int64_t DocumentRun::index_of(std::int64_t document) const {
    if (!order_) return document;
    return static_cast<std::int64_t>(order_->index_of(static_cast<std::uint64_t>(document)));
}

std::int64_t DocumentRun::find(std::int64_t position) const {
    return std::ranges::upper_bound(sums_, position) - sums_.begin() - 1;
}

StoredTokens DocumentRun::view(std::int64_t place) const {
    if (block_ != nullptr) return block_->tokens()[to_size(place)];
    const auto view = shard_->view(at(place));
    return {view.data, view.length, shard_->dtype()};
}

void DocumentRun::confirm(bool read) const {
    if (shard_ != nullptr) return shard_->confirm(read);
    // First those whose file is shorter, so that the message names the right one.
    for (const TokenShard* const shard : block_->shards())
        shard->confirm(true);
    if (read) return;
    for (const TokenShard* const shard : block_->shards())
        shard->confirm(false);
}

bool DocumentRun::mapped() const {
    if (shard_ != nullptr) return shard_->mapped();
    return std::ranges::any_of(block_->shards(), &TokenShard::mapped);
}

std::string DocumentRun::describe(std::int64_t place) const {
    const std::string& name = block_ != nullptr ? block_->source(place) : shard_->name();
    const std::int64_t document = block_ != nullptr ? block_->document(place) : at(place);
    return "document " + std::to_string(document) + (name.empty() ? "" : " of '" + name + "'");
}

void add_block_sums(const TokenShard& shard, const Permutation& order, std::int64_t first,
                    std::int64_t block_size, const Frame& frame, std::span<std::int64_t> sums,
                    int threads) {
    const std::int64_t n = shard.documents();
    const auto size = static_cast<std::int64_t>(order.size());
    if (first < 0 || first > size - n || block_size < 1 ||
        static_cast<std::int64_t>(sums.size()) != (size - 1) / block_size + 1) {
        throw std::invalid_argument(
            "documents " + std::to_string(first) + " to " + std::to_string(first + n) + " of " +
            std::to_string(size) + " in blocks of " + std::to_string(block_size) +
            " do not fit the " + std::to_string(sums.size()) + " sums, expected one for a block");
    }
    parallel_for(n, share, threads, [&](std::int64_t begin, std::int64_t end) {
        std::array<std::int64_t, share> documents;
        std::array<std::int64_t, share> places;
        std::array<std::int64_t, share> lengths;
        const std::size_t count = to_size(end - begin);
        std::iota(documents.begin(), documents.begin() + (end - begin), begin);
        read_lengths(shard, {documents.data(), count}, lengths.data());
        std::iota(documents.begin(), documents.begin() + (end - begin), first + begin);
        order.index_of({documents.data(), count}, {places.data(), count});
        for (std::size_t i = 0; i < count; ++i) {
            // Atomic: other threads add to the same blocks.
            std::atomic_ref<std::int64_t>(sums[to_size(places[i] / block_size)])
                .fetch_add(frame.framed_length(lengths[i]), std::memory_order_relaxed);
        }
    });
}

}  // namespace windeck
