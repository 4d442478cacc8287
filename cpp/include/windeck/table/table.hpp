// An embedding table: a hash table from 64-bit ids to rows of float32 or bfloat16, trained in
// place.
//
// Ids. Every int64 is an id, the negative ones and both extremes included. An id belongs to
// bucket_of(id) = mix(id) >> 54, one of 1,024 (see hash.hpp); a table holds the ids of a range of
// buckets, so that several tables may share all ids; other ids are an error.
//
// Rows. An id is *counted* from its first lookup with insertion, and *admitted* (it gets a row)
// after `admit_after` lookups; each occurrence in a batch counts. A
// row is an embedding of `dim` numbers, which begins as InitialValues says (see
// initial.hpp), and `slots` further vectors of `dim` for the optimizer, which begin as
// `slot_value`. All of them have the table's dtype. An id without a row reads as its initial value.
// Rows are passed as bytes, a bfloat16 as the upper half of a float32.
//
// Time. The clock counts updates: apply() adds one. A row's `version` is the clock of the last
// update that touched it (0: none), an id's `seen` the clock + 1 at its last lookup with insertion,
// that is the clock of the step it was looked up for. What changed since a snapshot with clock c
// are the ids whose version or seen is above c, and the dead (removed and not back) whose clock,
// clock + 1 at their removal, is above c. An id that was touched between a snapshot and the next
// update counts as changed, which is safe.
//
// Snapshots. snapshot() takes O(bytes / 256 KiB) time and no memory for rows. A snapshot never
// changes, and the table may be trained meanwhile: the first write to a slab that a snapshot holds
// copies it. A snapshot may outlive its table.
//
// Threads. All calls are thread-safe and atomic; lookup() and other reads run concurrently.
// `threads` is the number of threads of one call; results do not depend on it. After std::bad_alloc
// the table is consistent and holds the changes made so far; apply() and insert() change all or
// nothing.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "windeck/base/dtype.hpp"
#include "windeck/base/hash.hpp"
#include "windeck/table/initial.hpp"

namespace windeck {

inline constexpr int bucket_count = 1024;

/// Clocks, versions and frequencies passed by callers are in [0, clock_limit].
inline constexpr std::int64_t clock_limit = std::int64_t{1} << 62;

/// The bucket of an id, in [0, bucket_count).
constexpr std::int64_t bucket_of(std::int64_t id) {
    return static_cast<std::int64_t>(mix(static_cast<std::uint64_t>(id)) >> 54);
}

struct TableOptions {
    std::int64_t dim = 1;    // 1 to 2^20
    std::int64_t slots = 0;  // 0 to 8
    Initializer initializer = Initializer::normal;
    double scale = 0.01;
    float slot_value = 0;
    std::uint64_t seed = 0;
    std::int64_t admit_after = 1;  // at least 1
    int first_bucket = 0;          // 0 <= first <= end <= 1,024
    int end_bucket = bucket_count;
    DType dtype = DType::float32;  // or bfloat16
};

/// The update of a row w with slots s0, s1 by its gradient g; in float32, element by element, in
/// the order written. First, for all kinds, g += weight_decay * w where that is not 0.
///     sgd      w -= lr * g
///     adagrad  s0 += g * g; w -= lr * (g / (sqrt(s0) + eps))
///     adam     s0 = beta1 * s0 + (1 - beta1) * g; s1 = beta2 * s1 + (1 - beta2) * (g * g);
///              w -= (lr / (1 - beta1^t)) * (s0 / (sqrt(s1) / sqrt(1 - beta2^t) + eps))
/// with t the table's clock after this update. Adam is lazy: rows without a gradient stay as they
/// are, moments included. Numbers that do not depend on the row are computed in double precision
/// and rounded once. A row of bfloat16 is read as float32; at the end its numbers are rounded, to
/// nearest, ties to even.
struct Update {
    enum class Kind { sgd, adagrad, adam };

    Kind kind = Kind::sgd;
    double lr = 0.01;
    double eps = 1e-10;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double weight_decay = 0;
};

/// The slots an update needs.
constexpr std::int64_t slots_needed(Update::Kind kind) {
    return kind == Update::Kind::adam ? 2 : kind == Update::Kind::adagrad ? 1 : 0;
}

/// Columns with the metadata of ids, one entry per id.
struct IdMetadata {
    std::int64_t* versions;
    std::int64_t* frequencies;
    std::int64_t* seen;
    std::uint8_t* admitted;  // 0 or 1
};

/// Whole rows to insert: values has a row of (1 + slots) * dim numbers for each id that is
/// admitted, in the order of ids.
struct WholeRows {
    std::span<const std::int64_t> ids;
    std::span<const std::int64_t> versions;
    std::span<const std::int64_t> frequencies;
    std::span<const std::int64_t> seen;
    std::span<const std::uint8_t> admitted;
    std::span<const std::byte> values;
};

/// The conditions of an eviction: ids that satisfy all given ones are removed.
struct Eviction {
    std::optional<std::int64_t> seen_before;      // seen < this
    std::optional<double> l2_below;               // the embedding's norm < this; needs a row
    std::optional<std::int64_t> frequency_below;  // frequency < this
};

class TableSnapshot;

class Table {
  public:
    /// Throws std::invalid_argument for options out of their ranges.
    explicit Table(const TableOptions& options);
    ~Table();

    const TableOptions& options() const noexcept { return options_; }
    std::int64_t width() const noexcept { return (1 + options_.slots) * options_.dim; }

    /// The number of ids with rows and of ids without, and bytes of memory, without those that only
    /// snapshots hold.
    std::int64_t admitted() const;
    std::int64_t counted() const;
    std::int64_t bytes() const;
    std::int64_t clock() const;

    /// The number of changes that counts(since) and dead(since) do not show: insert(), set_clock(),
    /// advance(), clear(), and forget_dead() of any id.
    std::int64_t history() const;

    /// Writes the embedding of each id; ids.size() * dim numbers. Throws std::invalid_argument for
    /// an id in a bucket outside the table, here and below; the table is then unchanged.
    void lookup(std::span<const std::int64_t> ids, std::byte* out, int threads = 1) const;

    /// The same, and counts each occurrence and admits ids. Rows are added in order of occurrence.
    void lookup_insert(std::span<const std::int64_t> ids, std::byte* out, int threads = 1);

    /// The same with the slots: ids.size() * width() numbers; for ids without a row, the values of
    /// a new row.
    void read(std::span<const std::int64_t> ids, std::byte* out, int threads = 1) const;

    /// The metadata of ids, 0 for unknown ids. Columns that are null are not written.
    void facts(std::span<const std::int64_t> ids, const IdMetadata& out) const;

    /// One update: adds one to the clock, sums the gradients of each id in order of occurrence,
    /// then changes its row. Ids without a row are ignored. Returns the number of rows changed.
    /// Throws std::invalid_argument if the table has too few slots.
    std::int64_t apply(std::span<const std::int64_t> ids, const float* gradients,
                       const Update& update, int threads = 1);

    /// Removes ids and records them as dead; ids that are not in the table are ignored. remove()
    /// returns the number of ids removed, evict() the ids, sorted by (bucket, id).
    std::int64_t remove(std::span<const std::int64_t> ids);
    std::vector<std::int64_t> evict(const Eviction& which);

    /// Inserts blocks of whole rows, as read from a snapshot; threads take a block each. Throws
    /// std::invalid_argument for an id that is in the table or is given twice, and for a number
    /// outside [0, clock_limit]; the table is then unchanged.
    void insert(std::span<const WholeRows> blocks, int threads = 1);

    /// Reserves memory of the index for this many ids in all.
    void reserve(std::int64_t ids);

    void set_clock(std::int64_t clock);

    /// Adds `steps` to the clock, and to each version and seen that is not 0, so that their
    /// distances from the clock stay. O(ids). Throws std::invalid_argument if a number would
    /// exceed clock_limit.
    void advance(std::int64_t steps);

    /// Forgets the dead ids whose clock is at most this.
    void forget_dead(std::int64_t clock);

    /// Resets the table to its initial state: no ids, no dead ids, clock 0.
    void clear();

    std::shared_ptr<const TableSnapshot> snapshot();

  private:
    struct State;

    TableOptions options_;
    std::unique_ptr<State> state_;
};

/// The state of a table at one time. Immutable; all calls are thread-safe.
class TableSnapshot {
  public:
    struct Contents;
    struct Entry {
        std::int64_t id;
        std::uint64_t place;
    };

    /// Ids, sorted by (bucket, id). `owner` keeps their memory.
    struct Selection {
        std::shared_ptr<const void> owner;
        std::span<const Entry> entries;
        std::int64_t admitted = 0;
    };

    explicit TableSnapshot(std::unique_ptr<Contents> contents);
    ~TableSnapshot();

    std::int64_t clock() const noexcept;
    std::int64_t width() const noexcept;
    DType dtype() const noexcept;
    std::int64_t size() const noexcept;

    /// The history() of the table at the time of the snapshot.
    std::int64_t history() const noexcept;

    /// The number of ids with a row.
    std::int64_t admitted() const noexcept;

    /// Ids in each bucket whose version or seen is above `since`; below 0: all. O(ids).
    std::array<std::int64_t, bucket_count> counts(std::int64_t since) const;

    /// The same ids of the buckets [first, end), 0 <= first <= end <= 1,024. Consecutive
    /// ranges are fast, also where two threads take turns: selected ids are cached for the next
    /// calls, twice, each time 16 MiB or, of more than 8 Mi ids, 2 bytes for each id of the table.
    /// A call that finds its ids there does not scan the table.
    Selection select(int first, int end, std::int64_t since) const;

    /// Writes the metadata of selected ids, all or some of them, and width() numbers for each id
    /// with a row.
    void read(std::span<const Entry> entries, std::int64_t* ids, const IdMetadata& facts,
              std::byte* values) const;

    /// The dead ids and their clocks, for clocks above `since`, sorted by (bucket, id).
    std::vector<std::pair<std::int64_t, std::int64_t>> dead(std::int64_t since) const;

  private:
    std::unique_ptr<Contents> contents_;
};

}  // namespace windeck
