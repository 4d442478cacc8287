#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"
#include "windeck/table/table.hpp"

namespace windeck {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

TableOptions options_of(std::int64_t dim, std::int64_t slots = 0) {
    TableOptions options;
    options.dim = dim;
    options.slots = slots;
    options.scale = 1;
    options.seed = 42;
    return options;
}

std::byte* bytes_in(std::vector<float>& values) {
    return std::as_writable_bytes(std::span(values)).data();
}

std::vector<float> lookup(Table& table, const Ids& ids, bool insert, int threads = 1) {
    std::vector<float> out(ids.size() * static_cast<std::size_t>(table.options().dim));
    if (insert) {
        table.lookup_insert(ids, bytes_in(out), threads);
    } else {
        table.lookup(ids, bytes_in(out), threads);
    }
    return out;
}

/// The contents of a snapshot as plain vectors.
struct Shown {
    Ids ids;
    Ids versions;
    Ids frequencies;
    Ids seen;
    std::vector<std::uint8_t> admitted;
    std::vector<float> values;

    bool operator==(const Shown&) const = default;
};

Shown shown(const TableSnapshot& snapshot, int first = 0, int end = bucket_count,
            std::int64_t since = -1) {
    const auto selection = snapshot.select(first, end, since);
    const std::size_t size = selection.entries.size();
    Shown out{Ids(size), Ids(size), Ids(size), Ids(size), std::vector<std::uint8_t>(size), {}};
    out.values.resize(static_cast<std::size_t>(selection.admitted * snapshot.width()));
    snapshot.read(
        selection.entries, out.ids.data(),
        {out.versions.data(), out.frequencies.data(), out.seen.data(), out.admitted.data()},
        bytes_in(out.values));
    return out;
}

void initial_values() {
    Table table(options_of(4));
    const Ids ids{0, -1, 1, least, most};
    const std::vector<float> values = lookup(table, ids, false);
    const std::vector<std::uint32_t> golden{1061650872, 1057476981, 3223119794, 1047313009};
    for (std::size_t j = 0; j < golden.size(); ++j)
        check(std::bit_cast<std::uint32_t>(values[j]) == golden[j], "published values changed");
    check(table.admitted() == 0, "looking makes rows");
    check(lookup(table, ids, true) == values, "a stored row begins otherwise");
    check(lookup(table, ids, true, 2) == values, "threads change values");
    check(table.admitted() == 5);
    double sum = 0;
    for (int i = 1; i < 2000; ++i) {
        const double u = i / 2000.0;
        check(normal_quantile(u) > normal_quantile(u - 1.0 / 4000), "not increasing");
        sum += normal_quantile(u) + normal_quantile(1 - u);
    }
    check(std::abs(sum) < 1e-6, "not symmetric");
    check(std::abs(normal_quantile(0.975) - 1.959963984540054) < 1e-6);
    check(std::abs(normal_quantile(1e-12) + 7.034483825301131) < 1e-5);
}

void updates_and_versions() {
    Table table(options_of(2, 1));
    const Ids ids{7, -3, 7};
    const std::vector<float> before = lookup(table, ids, true);
    const std::vector<float> ones(6, 1.0F);
    Update update;
    update.lr = 0.5;
    check(table.apply(ids, ones.data(), update) == 2);
    const std::vector<float> after = lookup(table, ids, false);
    check(after[0] == before[0] - 1.0F && after[2] == before[2] - 0.5F, "sgd");
    check(table.clock() == 1);
    update.kind = Update::Kind::adam;
    check_throws<std::invalid_argument>([&] { table.apply(ids, ones.data(), update); },
                                        "the table has 1 slots, expected at least 2");
    check(table.clock() == 1, "a refused update counts");
}

void shards_refuse_foreign_ids() {
    TableOptions options = options_of(1);
    options.end_bucket = 1;
    Table table(options);
    lookup(table, {0}, true);
    check_throws<std::invalid_argument>([&] { lookup(table, {0, -1}, true); },
                                        "id -1 is of bucket 723, expected one of [0, 1)");
    check(table.admitted() == 1);
    options.first_bucket = 2;
    check_throws<std::invalid_argument>([&] { Table wrong(options); }, "end_bucket is 1");
    options = options_of(0);
    check_throws<std::invalid_argument>([&] { Table wrong(options); }, "dim is 0");
    options = options_of(1);
    options.scale = std::numeric_limits<double>::quiet_NaN();
    check_throws<std::invalid_argument>([&] { Table wrong(options); }, "scale is");
}

void insert_does_all_or_nothing() {
    Table table(options_of(2));
    lookup(table, {1, 2, 3}, true);
    const Shown whole = shown(*table.snapshot());
    Table other(options_of(2));
    const WholeRows rows{whole.ids,  whole.versions, whole.frequencies,
                         whole.seen, whole.admitted, std::as_bytes(std::span(whole.values))};
    other.insert({&rows, 1});
    check(shown(*other.snapshot()) == whole, "restored otherwise");
    check_throws<std::invalid_argument>([&] { other.insert({&rows, 1}); },
                                        "is in the table already");
    check(shown(*other.snapshot()) == whole, "a refused insert changes something");
}

/// A snapshot that was taken while another thread trains never changes.
void snapshots_of_a_table_in_training() {
    Table table(options_of(16, 1));
    Ids ids(20000);
    for (std::size_t i = 0; i < ids.size(); ++i)
        ids[i] = static_cast<std::int64_t>(i * i) - 5000;
    std::atomic<bool> stop{false};
    std::thread trainer([&] {
        const std::vector<float> ones(ids.size() * 16, 1.0F);
        std::vector<float> out(ids.size() * 16);
        Update update;
        update.kind = Update::Kind::sgd;
        update.lr = 1;
        for (std::int64_t round = 0; !stop; ++round) {
            const std::int64_t gone = ids[static_cast<std::size_t>(round % 1000)];
            table.lookup_insert(ids, bytes_in(out), 2);
            table.apply(ids, ones.data(), update, 2);
            table.remove(Ids{gone});
        }
    });
    std::vector<std::pair<std::shared_ptr<const TableSnapshot>, Shown>> held;
    for (int round = 0; round < 30; ++round) {
        auto taken = table.snapshot();
        Shown now = shown(*taken, 0, bucket_count);
        // At one moment every row there is has had the same updates, or was made since.
        const std::int64_t clock = taken->clock();
        for (std::size_t i = 0; i < now.ids.size(); ++i) {
            check(now.versions[i] == clock || now.versions[i] == 0, "rows of different moments");
            check(now.seen[i] <= clock + 1, "seen in the future");
        }
        held.emplace_back(std::move(taken), std::move(now));
        if (held.size() > 4) held.erase(held.begin());
        for (const auto& [snapshot, before] : held)
            check(shown(*snapshot) == before, "a snapshot changed");
    }
    stop = true;
    trainer.join();
    for (const auto& [snapshot, before] : held)
        check(shown(*snapshot) == before, "a snapshot changed");
}

void many_threads_at_once() {
    Table table(options_of(8, 1));
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t) {
        threads.emplace_back([&table, t] {
            Ids ids(300);
            Eviction rare;
            rare.frequency_below = 2;
            Update gentle;
            gentle.lr = 0.001;
            std::vector<float> out(ids.size() * 8);
            for (std::int64_t round = 0; round < 60; ++round) {
                for (std::size_t i = 0; i < ids.size(); ++i)
                    ids[i] = (round * 37 + static_cast<std::int64_t>(i)) % 2000 - 1000;
                if (t % 3 == 0) table.lookup_insert(ids, bytes_in(out), 2);
                if (t % 3 == 1) table.lookup(ids, bytes_in(out), 2);
                if (t % 3 == 2 && round % 5 == 0) table.evict(rare);
                if (t == 0) table.apply(ids, out.data(), gentle, 2);
                if (t == 4) table.forget_dead(round);
            }
        });
    }
    for (std::thread& thread : threads)
        thread.join();
    const Shown end = shown(*table.snapshot());
    check(static_cast<std::int64_t>(end.ids.size()) == table.admitted());
}

/// Large batches, in which ids repeat and wait to be admitted, while a snapshot holds every slab.
void counting_side_by_side() {
    TableOptions options = options_of(16);
    options.admit_after = 3;
    Table one(options);
    Table many(options);
    std::map<std::int64_t, std::int64_t> times;
    std::uint64_t state = 1;
    for (int round = 0; round < 6; ++round) {
        Ids ids(20000 + static_cast<std::size_t>(round));
        for (std::int64_t& id : ids) {
            state = mix(state + 1);
            id = static_cast<std::int64_t>(state % 30000) - 15000;
            ++times[id];
        }
        const auto held = many.snapshot();
        const Shown before = shown(*held);
        check(lookup(one, ids, true) == lookup(many, ids, true, 5), "threads change values");
        check(shown(*held) == before, "a snapshot changed");
        Update step;
        const std::vector<float> gradients(ids.size() * 16, 1.0F);
        check(one.apply(ids, gradients.data(), step) == many.apply(ids, gradients.data(), step, 2));
        check(lookup(one, ids, false) == lookup(many, ids, false, 5), "threads change rows");
    }
    const Shown end = shown(*many.snapshot());
    check(end == shown(*one.snapshot()), "threads change counts");
    check(end.ids.size() == times.size());
    for (std::size_t i = 0; i < end.ids.size(); ++i) {
        check(end.frequencies[i] == times.at(end.ids[i]), "an occurrence was lost");
        check((end.admitted[i] != 0) == (times.at(end.ids[i]) >= 3));
    }
}

/// Reading all buckets in turn takes as many scans for a table of any size.
void scans_of_a_large_table() {
    constexpr std::int64_t count = 10 << 20;
    constexpr std::int64_t step = 1 << 20;
    Table table(options_of(1));
    const Ids ones(step, 1);
    const std::vector<std::uint8_t> counted(step, 0);
    for (std::int64_t first = 0; first < count; first += step) {
        Ids ids(step);
        std::iota(ids.begin(), ids.end(), first);
        const WholeRows rows{ids, ones, ones, ones, counted, {}};
        table.insert({&rows, 1});
    }
    const auto snapshot = table.snapshot();
    std::shared_ptr<const void> last;
    int scans = 0;
    std::int64_t found = 0;
    for (int bucket = 0; bucket < bucket_count; ++bucket) {
        const auto selection = snapshot->select(bucket, bucket + 1, -1);
        scans += selection.owner != last ? 1 : 0;
        last = selection.owner;
        found += static_cast<std::int64_t>(selection.entries.size());
    }
    check(found == count, "ids are missing");
    check(scans <= 9, "a large table is scanned more often");

    // Two readers that take turns, each with half of the buckets.
    constexpr int half = bucket_count / 2;
    std::array<std::shared_ptr<const void>, 2> owners;
    scans = 0;
    found = 0;
    for (int bucket = 0; bucket < half; ++bucket) {
        for (int reader = 0; reader < 2; ++reader) {
            const int own = bucket + reader * half;
            const auto selection = snapshot->select(own, own + 1, -1);
            auto& owner = owners[static_cast<std::size_t>(reader)];
            scans += selection.owner != owner ? 1 : 0;
            owner = selection.owner;
            found += static_cast<std::int64_t>(selection.entries.size());
        }
    }
    check(found == count, "ids are missing where two read");
    check(scans <= 10, "two readers scan a large table more often");
}

/// Rows of bfloat16: rounded once for each update, to nearest, ties to even.
void rows_of_bfloat16() {
    TableOptions options = options_of(1, 1);
    options.initializer = Initializer::zeros;
    options.dtype = DType::bfloat16;
    options.slot_value = 1;
    Table table(options);
    const Ids ids{5, -6};
    std::vector<std::uint16_t> out(4);
    const auto bytes = std::as_writable_bytes(std::span(out));
    table.lookup_insert(ids, bytes.data());
    Update update;
    update.kind = Update::Kind::adagrad;
    update.eps = 0;
    update.lr = 1;
    const std::vector<float> gradients{0x1p-3F, 0x1.8p-4F};  // squares: 2^-6 and 1.125 * 2^-7
    check(table.apply(ids, gradients.data(), update) == 2);
    table.read(ids, bytes.data());
    // 1 + 2^-6 and, of 1 + 1.125 * 2^-7, the nearest: 1 + 2^-7.
    check(out[1] == 0x3F82 && out[3] == 0x3F81, "slots are rounded otherwise");
    check(out[0] == 0xBDFE && out[2] == 0xBDBF, "rows are rounded otherwise");
    options.dtype = DType::float16;
    check_throws<std::invalid_argument>([&] { Table{options}; }, "dtype is float16");
}

}  // namespace
}  // namespace windeck

int main() {
    windeck::initial_values();
    windeck::updates_and_versions();
    windeck::shards_refuse_foreign_ids();
    windeck::insert_does_all_or_nothing();
    windeck::snapshots_of_a_table_in_training();
    windeck::many_threads_at_once();
    windeck::counting_side_by_side();
    windeck::scans_of_a_large_table();
    windeck::rows_of_bfloat16();
}
