#include "windeck/table/table.hpp"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <stdexcept>
#include <string>

#include "table/table_state.hpp"

namespace windeck {
namespace {

void require(bool holds, const std::string& message) {
    if (!holds) throw std::invalid_argument(message);
}

void require_range(std::int64_t value, const char* name, std::int64_t low, std::int64_t high) {
    require(value >= low && value <= high, std::string(name) + " is " + std::to_string(value) +
                                               ", expected an integer from " + std::to_string(low) +
                                               " to " + std::to_string(high));
}

const TableOptions& checked(const TableOptions& options) {
    require_range(options.dim, "dim", 1, std::int64_t{1} << 20);
    require_range(options.slots, "slots", 0, 8);
    require_range(options.admit_after, "admit_after", 1, clock_limit);
    require_range(options.first_bucket, "first_bucket", 0, bucket_count);
    require_range(options.end_bucket, "end_bucket", options.first_bucket, bucket_count);
    require(
        std::isfinite(options.scale) && options.scale >= 0,
        "scale is " + std::to_string(options.scale) + ", expected a finite number of 0 or more");
    require(std::isfinite(options.slot_value),
            "slot_value is " + std::to_string(options.slot_value) + ", expected a finite number");
    require(options.dtype == DType::float32 || options.dtype == DType::bfloat16,
            "dtype is " + std::string(name(options.dtype)) + ", expected float32 or bfloat16");
    return options;
}

}  // namespace

Table::Table(const TableOptions& options)
    : options_(checked(options)), state_(std::make_unique<State>(options_)) {}

Table::~Table() = default;

std::int64_t Table::admitted() const {
    const std::shared_lock lock(state_->mutex);
    return static_cast<std::int64_t>(state_->rows.size());
}

std::int64_t Table::counted() const {
    const std::shared_lock lock(state_->mutex);
    return static_cast<std::int64_t>(state_->counters.size());
}

std::int64_t Table::bytes() const {
    const std::shared_lock lock(state_->mutex);
    const State& s = *state_;
    const std::size_t scratch = s.places.capacity() * sizeof(s.places[0]) + s.occurrences.bytes();
    return static_cast<std::int64_t>(s.map.bytes() + s.rows.bytes() + s.counters.bytes() +
                                     s.dead->bytes() + scratch);
}

std::int64_t Table::clock() const {
    const std::shared_lock lock(state_->mutex);
    return state_->clock;
}

void Table::reserve(std::int64_t ids) {
    require_range(ids, "ids", 0, clock_limit);
    const std::lock_guard lock(state_->mutex);
    state_->map.reserve(static_cast<std::uint64_t>(ids));
}

std::int64_t Table::history() const {
    const std::shared_lock lock(state_->mutex);
    return state_->history;
}

void Table::set_clock(std::int64_t clock) {
    require_range(clock, "clock", 0, clock_limit);
    const std::lock_guard lock(state_->mutex);
    state_->clock = clock;
    ++state_->history;
}

void Table::advance(std::int64_t steps) {
    require_range(steps, "steps", 0, clock_limit);
    const std::lock_guard lock(state_->mutex);
    State& s = *state_;
    require(s.clock <= clock_limit - 1 - steps, "the clock is " + std::to_string(s.clock) +
                                                    ", expected at most 2^62 after " +
                                                    std::to_string(steps) + " more steps");
    for (RowStore* store : {&s.rows, &s.counters}) {
        for (std::uint64_t row = 0; row < store->size(); ++row) {
            store->make_writable(row);
            RowHead& head = store->head_to_change(row);
            for (std::int64_t* number : {&head.version, &head.seen})
                *number = *number == 0 ? 0 : std::min(*number + steps, clock_limit);
        }
    }
    s.clock += steps;
    ++s.history;
}

void Table::clear() {
    const std::lock_guard lock(state_->mutex);
    State& s = *state_;
    auto none = std::make_shared<IdMap>();
    s.map.clear();
    s.rows.clear();
    s.counters.clear();
    s.dead = std::move(none);
    s.dead_shared = false;
    s.clock = 0;
    ++s.history;
}

}  // namespace windeck
